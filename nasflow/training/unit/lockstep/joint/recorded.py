"""A joint step recorded as tensor operations, which are run again without its Python, `torch.vmap` and autograd."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.dialect.common.cse_pass import CSEPass
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from nasflow.native import log_softmax, log_softmax_backward
from nasflow.training.unit.lockstep.joint.computed import Computed
from nasflow.training.unit.lockstep.joint.looking import NotRecordableError, refusing_to_look

States = Mapping[str, Mapping[str, torch.Tensor]]
"""Of metrics: tensors `[n, ...]` by the metric's name and the state's."""

Run = Callable[[torch.Tensor, States, States, Any], tuple[torch.Tensor, Computed]]
"""Runs a step on the models' outputs `[n, B, ...]`, metrics' states and their defaults, and a batch.

Returns what the models read, `[B, ...]`, and what was computed, in training with gradients.
"""


@dataclass(frozen=True)
class Recording:
    """The operations of a joint step, for batches of one form.

    Attributes:
        names: of what the step has read of the members' modules.
        read: the values, as `JointView.signature` returns them.
    """

    names: frozenset[str]
    read: Hashable
    _x: Callable[..., torch.Tensor]
    _operations: Callable[..., list[torch.Tensor]]
    _found: Computed  # when it was recorded
    _writes: bool  # into what it is given

    @property
    def metrics(self) -> Sequence[str]:
        """The metrics whose states it reads."""
        return list(self._found.states)

    def model_reads(self, batch: Any) -> torch.Tensor:
        """Return what the models read of a batch, `[B, ...]`."""
        return self._x(*_tensors(batch))

    def compute(self, outputs: torch.Tensor, states: States, defaults: States, batch: Any) -> Computed:
        """Return what the step computes, in training with gradients by `outputs`, `[n, B, ...]`."""
        given = [outputs, *tree_leaves((states, defaults)), *_tensors(batch)]
        if self._writes:
            given = [tensor.clone() for tensor in given]
        values, found = iter(self._operations(*given)), self._found
        return replace(
            found,
            losses=None if found.losses is None else next(values),
            gradients=None if found.gradients is None else next(values),
            logged={name: next(values) for name in found.logged},
            states={name: {key: next(values) for key in own} for name, own in found.states.items()},
        )


def form(batch: Any) -> Hashable:
    """Return what batches must have in common to share a recording.

    Raises:
        NotRecordableError: there is something else in it than tensors, such as a name, which may be another in each.
    """
    leaves, structure = tree_flatten(batch)
    return str(structure), tuple(map(_form, leaves))


def record(
    run: Run,
    given: tuple[torch.Tensor, States, States, Any],
    read: Callable[[], tuple[frozenset[str], Hashable]],
) -> Recording:
    """Run a step, and record its operations.

    Args:
        given: to `run`; not changed.
        read: returns afterwards the names and the values of what the step has read.

    Raises:
        NotRecordableError: the operations depend on something else than what is given.
        Exception: whatever `run` raises, also because it looks at a value.
    """
    outputs, states, defaults, batch = given
    leaves, structure = tree_flatten(batch)
    metrics, metrics_structure = tree_flatten((states, defaults))
    found: list[Computed] = []

    def flat(outputs: torch.Tensor, *others: torch.Tensor) -> list[torch.Tensor]:
        left = iter(others)
        own_states, own_defaults = tree_unflatten([next(left) for _ in metrics], metrics_structure)
        parts = [next(left) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        with refusing_to_look():
            x, computed = run(outputs, own_states, own_defaults, tree_unflatten(parts, structure))
        found.append(computed)
        return [x, *computed.tensors()]

    copies = [tensor.detach().clone() for tensor in (outputs, *metrics, *_tensors(batch))]
    module: fx.GraphModule = cast(Any, make_fx(flat))(*copies)
    _keep_constants(module)
    writes = any(map(_writes, module.graph.nodes))
    x = _model_reads(module, 1 + len(metrics))
    return Recording(*read(), x, _others(module, writes), found[0], writes)


def _form(leaf: Any) -> Hashable:
    if type(leaf) is torch.Tensor and not leaf.requires_grad:
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device
    if leaf is not None:
        raise NotRecordableError(f"its batches contain a {type(leaf).__name__}")
    return None


def _tensors(batch: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _model_reads(module: fx.GraphModule, first: int) -> Callable[..., torch.Tensor]:
    """Return the operations of the first output as a function of the inputs from `first` on.

    Raises:
        NotRecordableError: it depends on other inputs, or may depend on what was written into a tensor.
    """
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    x = _outputs(module)[0]
    if x.op != "placeholder" and any(map(_writes, module.graph.nodes)):
        raise NotRecordableError("it writes into tensors, and its model reads something computed")

    def copy(node: fx.Node) -> None:
        if node in copies:
            return
        if node.op == "placeholder":
            raise NotRecordableError("its model reads something else than the batch")
        for earlier in node.all_input_nodes:
            copy(earlier)
        copies[node] = graph.node_copy(node, copies.__getitem__)

    for node in inputs[first:]:
        copies[node] = graph.node_copy(node)
    copy(x)
    graph.output(copies[x])
    forward: Callable[..., torch.Tensor] = fx.GraphModule(module, graph).forward
    return forward


def _others(module: fx.GraphModule, writes: bool) -> Callable[..., list[torch.Tensor]]:
    """Return the operations of all outputs but the first."""
    module.graph.output_node().args = (_outputs(module)[1:],)
    module.graph.eliminate_dead_code()
    if not writes:
        _drop_copies(module)
        module = CSEPass().call(module).graph_module
        _fold(module)
    for node in module.graph.nodes:
        node.target = _FASTER.get(node.target, node.target)
    module.recompile()
    forward: Callable[..., list[torch.Tensor]] = module.forward
    return forward


def _drop_copies(module: fx.GraphModule) -> None:
    """Use tensors themselves in place of copies and views without autograd, where nothing is written into any."""
    for node in module.graph.nodes:
        if node.target in _COPIES and not node.kwargs:
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)


def _keep_constants(module: fx.GraphModule) -> None:
    """Copy the tensors that the operations read beside their inputs, such as weights of a loss, which may change."""
    for name in {str(node.target) for node in module.graph.nodes if node.op == "get_attr"}:
        value = getattr(module, name)
        if isinstance(value, torch.Tensor):
            setattr(module, name, value.detach().clone())


def _fold(module: fx.GraphModule) -> None:
    """Compute now what depends on no input."""
    for node in module.graph.nodes:
        if node.op == "call_function" and not node.all_input_nodes and isinstance(node.target, torch._ops.OpOverload):
            name = f"constant_{node.name}"
            module.register_buffer(name, node.target(*node.args, **node.kwargs))
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(module.graph.get_attr(name))
            module.graph.erase_node(node)


def _outputs(module: fx.GraphModule) -> list[fx.Node]:
    return list(module.graph.output_node().args[0])  # type: ignore[arg-type]


def fast_log_softmax(x: torch.Tensor, dim: int, to_float: bool) -> torch.Tensor:
    """Compute `aten::_log_softmax`, natively where a kernel fits."""
    found = log_softmax(x) if dim in (-1, x.ndim - 1) and not to_float else None
    return torch.ops.aten._log_softmax.default(x, dim, to_float) if found is None else found


def fast_log_softmax_backward(
    gradient: torch.Tensor, output: torch.Tensor, dim: int, dtype: torch.dtype
) -> torch.Tensor:
    """Compute `aten::_log_softmax_backward_data`, natively where a kernel fits."""
    is_last = dim in (-1, output.ndim - 1) and dtype is output.dtype and gradient.shape == output.shape
    found = log_softmax_backward(gradient, output) if is_last else None
    return torch.ops.aten._log_softmax_backward_data.default(gradient, output, dim, dtype) if found is None else found


_COPIES = (torch.ops.aten.clone.default, torch.ops.aten.detach.default, torch.ops.aten.alias.default)
_FASTER: Mapping[Any, Callable[..., torch.Tensor]] = {
    torch.ops.aten._log_softmax.default: fast_log_softmax,
    torch.ops.aten._log_softmax_backward_data.default: fast_log_softmax_backward,
}
