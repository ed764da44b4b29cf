"""Properties of torch's operations: which draw random numbers, which change a state, which are elementwise."""

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from nasflow.merge.trace.counter_dropout import CounterDropout
from nasflow.merge.trace.node import Node, changes_in_place
from nasflow.merge.trace.shape_inference import Spec
from nasflow.merge.trace.signature import is_hooked

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_CHANNEL_DROPOUTS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
_DROPOUTS = (nn.Dropout, nn.AlphaDropout, *_CHANNEL_DROPOUTS)
_DETERMINISTIC_LAYERS = (
    *(nn.Linear, nn.Bilinear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Embedding, nn.Flatten, nn.Unflatten, nn.Identity),
    *(nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm, nn.Softmax, nn.LogSoftmax, nn.Upsample),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.LPPool2d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d),
    *(nn.ZeroPad2d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ReflectionPad2d, nn.PixelShuffle, nn.ChannelShuffle),
    *(nn.GLU, nn.PReLU, nn.Softmax2d, nn.Softmin, nn.CosineSimilarity),
)
_POINTWISE_LAYERS = (
    *(nn.ReLU, nn.ReLU6, nn.GELU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.ELU, nn.SELU, nn.CELU, nn.LeakyReLU, nn.Mish),
    *(nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Softplus, nn.Softsign, nn.LogSigmoid, nn.Tanhshrink),
    *(nn.Softshrink, nn.Hardshrink, nn.Threshold, nn.Identity),
)
_POINTWISE_NAMES = frozenset(
    [
        "relu",
        "relu6",
        "gelu",
        "tanh",
        "sigmoid",
        "silu",
        "elu",
        "selu",
        "celu",
        "leaky_relu",
        "mish",
        "hardswish",
        "hardsigmoid",
        "hardtanh",
        "softplus",
        "softsign",
        "logsigmoid",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "abs",
        "neg",
        "square",
        "sin",
        "cos",
        "erf",
        "contiguous",
        "float",
        "clone",
        "detach",
    ]
)
_PAIRWISE_NAMES = frozenset(["add", "sub", "mul", "truediv", "div", "maximum", "minimum"])
_PURE_NAMES = (
    _POINTWISE_NAMES
    | _PAIRWISE_NAMES
    | frozenset(
        [
            "flatten",
            "view",
            "reshape",
            "permute",
            "transpose",
            "unsqueeze",
            "squeeze",
            "cat",
            "concat",
            "stack",
            "mean",
            "sum",
            "amax",
            "amin",
            "max",
            "min",
            "size",
            "dim",
            "shape",
            "ndim",
            "getattr",
            "getitem",
            "softmax",
            "log_softmax",
            "max_pool1d",
            "max_pool2d",
            "avg_pool1d",
            "avg_pool2d",
            "chunk",
            "split",
            "pow",
            "adaptive_avg_pool1d",
            "adaptive_avg_pool2d",
            "adaptive_max_pool2d",
            "pad",
            "interpolate",
            "matmul",
            "bmm",
            "einsum",
            "expand",
            "layer_norm",
            "group_norm",
            "linear",
            "conv1d",
            "conv2d",
            "embedding",
            "floordiv",
            "mod",
            "eq",
            "ne",
            "lt",
            "gt",
            "le",
            "ge",
            "where",
            "clamp",
            "unflatten",
            "swapaxes",
            "movedim",
            "repeat",
            "expand_as",
            "view_as",
            "normalize",
            "var",
            "std",
            "norm",
            "unbind",
            "T",
            "mT",
            "to",
            "type_as",
            "iadd",
            "imul",
            "isub",
            "scaled_dot_product_attention",
            "one_hot",
            "cumsum",
            "flip",
            "roll",
        ]
    )
)
_MODULES = (torch, F, operator)
_ALIASING_LAYERS = (nn.Identity, nn.Flatten, nn.Unflatten)
_ALIASING_NAMES = frozenset(
    [
        *("flatten", "view", "reshape", "permute", "transpose", "unsqueeze", "squeeze", "getattr", "getitem", "chunk"),
        *("split", "expand", "unflatten", "swapaxes", "movedim", "expand_as", "view_as", "unbind", "T", "mT", "to"),
        *("type_as", "contiguous", "float", "detach", "interpolate", "pad", "einsum"),
    ]
)
_VIEWS = frozenset(["view", "view_as"])


def function_name(node: Node) -> str | None:
    """Return the name of a call to torch, torch.nn.functional, operator or a tensor's method; else None."""
    if node.op == "method":
        return str(node.target).removesuffix("_") if not str(node.target).startswith("__") else str(node.target)
    if node.op != "function":
        return None
    name = getattr(node.target, "__name__", "")
    known = node.target is getattr or any(getattr(place, name, None) is node.target for place in _MODULES)
    builtin = type(node.target).__module__ == "builtins" and str(getattr(node.target, "__module__", "")).startswith(
        ("torch", "_operator")
    )
    return name.removesuffix("_") if known or builtin else None


def is_changing(node: Node) -> bool:
    """Whether the node changes its layer's state when called in training."""
    module = node.module
    if module is None:
        return False
    if node.opaque:
        return True
    if any(isinstance(part, CounterDropout) and part.training and part.p > 0 for part in module.modules()):
        return True
    return isinstance(module, _BATCH_NORMS) and module.training and module.track_running_stats


def is_random(node: Node) -> bool:
    """Whether the node may draw random numbers, in training or always; operations not known to draw none may."""
    module = node.module
    if module is not None:
        if runs_own_code(node):
            return True
        if isinstance(module, CounterDropout):
            return False
        if isinstance(module, _DROPOUTS):
            return module.training and module.p > 0
        return type(module) not in _DETERMINISTIC_LAYERS + _POINTWISE_LAYERS + _BATCH_NORMS
    if node.op in ("function", "method"):
        name = function_name(node)
        if name == "scaled_dot_product_attention":
            return bool(node.kwargs.get("dropout_p", 0.0)) or len(node.args) > 4
        return name not in _PURE_NAMES
    return False


def runs_own_code(node: Node) -> bool:
    """Whether the node runs code that a graph does not show, in the forward or the backward."""
    module = node.module
    if module is None:
        return False
    return node.opaque or is_hooked(module) or (bool(module._modules) and any(map(is_hooked, module.modules())))


def makes_tensor(node: Node) -> bool:
    """Whether the output certainly shares no memory with the inputs."""
    if changes_in_place(node):
        return False
    if node.module is not None:
        known = type(node.module) in (*_DETERMINISTIC_LAYERS, *_POINTWISE_LAYERS, *_BATCH_NORMS)
        return known and type(node.module) not in _ALIASING_LAYERS
    return function_name(node) in _PURE_NAMES - _ALIASING_NAMES


def minds_strides(node: Node) -> bool:
    """Whether the output may depend on the strides of the inputs, or the call may fail because of them."""
    if type(node.module) is nn.GroupNorm or function_name(node) == "group_norm":
        return not has_trained_source(node)
    return function_name(node) in _VIEWS or (is_random(node) and type(node.module) not in _CHANNEL_DROPOUTS)


def averages_windows(node: Node) -> bool:
    """Whether the node is an average pool; on a GPU, torch's backward of these is wrong for channels-last images."""
    return type(node.module) in (nn.AvgPool2d, nn.AvgPool3d) or function_name(node) in ("avg_pool2d", "avg_pool3d")


def has_trained_source(node: Node) -> bool:
    """Whether any direct or indirect input is trained, so that the node's input may need a gradient."""
    seen, to_see = {node}, list(node.inputs)
    while to_see:
        source = to_see.pop()
        if is_training(source):
            return True
        if source not in seen:
            seen.add(source)
            to_see += source.inputs
    return False


def passes_gradients(node: Node) -> bool:
    """Whether gradients flow from the node's output to its inputs."""
    if isinstance(node.spec, Spec) and not (node.spec.dtype.is_floating_point or node.spec.dtype.is_complex):
        return False
    return function_name(node) != "detach" and not (node.target is getattr and node.args[1] == "data")


def is_training(node: Node) -> bool:
    """Whether the node holds parameters that are trained."""
    if node.op == "attribute":
        return bool(node.args[0].requires_grad)
    return node.module is not None and any(p.requires_grad for p in node.module.parameters())


def is_pure(node: Node) -> bool:
    """Whether equal inputs always give equal outputs, without side effects; nodes that are trained are not pure."""
    if node.op == "module" and isinstance(node.module, _DROPOUTS):
        return not node.module.training or node.module.p == 0
    batch_norm = isinstance(node.module, _BATCH_NORMS) and node.module.training
    return not (batch_norm or is_random(node) or is_changing(node) or is_training(node) or node.eval_args is not None)


def is_dropout(node: Node) -> bool:
    """Whether the node is a plain `nn.Dropout`, so that its mask can be drawn outside of it."""
    return type(node.module) is nn.Dropout and not is_hooked(node.module)


def pointwise(node: Node) -> Callable[[Any], Any] | None:
    """Return the node as an elementwise function of its one tensor, or None if it is not one.

    The function does not work in place, even if the node does.
    """
    if node.eval_args is not None or len(node.inputs) != 1 or not isinstance(node.spec, Spec):
        return None
    if node.module is not None:
        if type(node.module) not in _POINTWISE_LAYERS or is_hooked(node.module):
            return None
        layer = copy.copy(node.module)
        layer.__dict__["inplace"] = False
        return layer
    name, rest, kwargs, target = function_name(node), node.args[1:], node.kwargs, node.target
    if name not in _POINTWISE_NAMES or node.args[:1] != node.inputs:
        return None
    if node.op == "method":
        return lambda x: getattr(x, name)(*rest, **kwargs)
    if changes_in_place(node):
        if rest:
            return None
        target = getattr(F, name, None) or getattr(torch, name)
        kwargs = {key: value for key, value in kwargs.items() if key != "inplace"}
    return lambda x: target(x, *rest, **kwargs)


def pairwise(node: Node) -> Callable[..., Any] | None:
    """Return the node as an elementwise function of one or two tensors of its own shape and numbers, or None."""
    name = function_name(node)
    name = {"iadd": "add", "imul": "mul", "isub": "sub", "itruediv": "truediv"}.get(name or "", name)
    if name not in _PAIRWISE_NAMES or node.kwargs or len(node.args) != 2 or not isinstance(node.spec, Spec):
        return None
    if any(not node.spec.is_like(source.spec) for source in node.inputs):
        return None
    left, right = node.args
    if not all(isinstance(arg, Node | int | float) for arg in (left, right)):
        return None
    function: Callable[..., Any] = {"truediv": torch.div}.get(name) or getattr(torch, name)
    if isinstance(left, Node) and isinstance(right, Node):
        return (lambda x: function(x, x)) if left is right else function
    return (lambda x: function(x, right)) if isinstance(left, Node) else (lambda x: _reversed(function, left, x))


def _reversed(function: Callable[..., Any], number: Any, x: torch.Tensor) -> Any:
    return function(torch.as_tensor(number, dtype=x.dtype, device=x.device), x)
