"""Convolutional networks of pytorchcv, narrowed and cut to a few layers."""

import importlib
import inspect
import itertools
from types import ModuleType
from typing import Any
from unittest import mock

from torch import nn

CLASSES = 4

# By architecture: module, function, and what is passed in place of its own arguments.
NETWORKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ResNet": ("resnet", "resnet18", {}),
    "ResNet bottleneck": ("resnet", "resnet50", {}),
    "ResNet CIFAR": ("resnet_cifar", "resnet20_cifar10", {}),
    "PreResNet": ("preresnet", "preresnet18", {}),
    "ResNet-A": ("resneta", "resneta18", {}),
    "ResNet-D": ("resnetd", "resnetd50b", {}),
    "ResNeXt": ("resnext", "resnext26_32x4d", {"cardinality": 4, "bottleneck_width": 32}),
    "SE-ResNet": ("seresnet", "seresnet18", {}),
    "SE-PreResNet": ("sepreresnet", "sepreresnet18", {}),
    "SE-ResNeXt": ("seresnext", "seresnext50_32x4d", {"cardinality": 4, "bottleneck_width": 32}),
    "SENet": ("senet", "senet28", {"cardinality": 4, "bottleneck_width": 32}),
    "CBAM-ResNet": ("cbamresnet", "cbam_resnet18", {}),
    "BAM-ResNet": ("bamresnet", "bam_resnet18", {}),
    "ResNeSt-A": ("resnesta", "resnesta18", {}),
    "Oct-ResNet": ("octresnet", "octresnet50b_ad2", {}),
    "AirNet": ("airnet", "airnet50_1x64d_r2", {}),
    "AirNeXt": ("airnext", "airnext50_32x4d_r2", {"cardinality": 4, "bottleneck_width": 32}),
    "BagNet": ("bagnet", "bagnet9", {}),
    "DRN-C": ("drn", "drnc26", {}),
    "IBN-ResNet": ("ibnresnet", "ibn_resnet50", {}),
    "IBN(b)-ResNet": ("ibnbresnet", "ibnb_resnet50", {}),
    "iSQRT-COV-ResNet": ("isqrtcovresnet", "isqrtcovresnet18", {}),
    "RevNet": ("revnet", "revnet38", {}),
    "FractalNet": ("fractalnet_cifar", "fractalnet_cifar10", {}),
    "RoR-3": ("ror_cifar", "ror3_56_cifar10", {}),
    "ResDrop-ResNet": ("resdropresnet_cifar", "resdropresnet20_cifar10", {}),
    "ShakeDrop-ResNet": ("shakedropresnet_cifar", "shakedropresnet20_cifar10", {}),
    "Shake-Shake-ResNet": ("shakeshakeresnet_cifar", "shakeshakeresnet20_2x16d_cifar10", {}),
    "ShaResNet": ("sharesnet", "sharesnet18", {}),
    "DIA-ResNet": ("diaresnet", "diaresnet18", {}),
    "DIA-PreResNet": ("diapreresnet", "diapreresnet18", {}),
    "DiracNetV2": ("diracnetv2", "diracnet18v2", {}),
    "WRN": ("wrn", "wrn50_2", {"width_factor": 1.0}),
    "PyramidNet": ("pyramidnet", "pyramidnet101_a360", {}),
    "TResNet": ("tresnet", "tresnet_m", {}),
    "ResAttNet": ("resattnet", "resattnet56", {}),
    "DenseNet": ("densenet", "densenet121", {}),
    "DenseNet CIFAR": ("densenet_cifar", "densenet40_k12_cifar10", {"dropout_rate": 0.2}),
    "X-DenseNet": ("xdensenet", "xdensenet121_2", {}),
    "IBN-DenseNet": ("ibndensenet", "ibn_densenet121", {}),
    "DLA": ("dla", "dla34", {}),
    "VoVNet": ("vovnet", "vovnet39", {}),
    "SelecSLS": ("selecsls", "selecsls42", {}),
    "NIN": ("nin_cifar", "nin_cifar10", {}),
    "DarkNet-53": ("darknet53", "darknet53", {}),
    "SqueezeNet": ("squeezenet", "squeezenet_v1_0", {}),
    "SqueezeNext": ("squeezenext", "sqnxt23_w1", {}),
    "MobileNet": ("mobilenet", "mobilenet_w1", {}),
    "MobileNetV2": ("mobilenetv2", "mobilenetv2_w1", {}),
    "MobileNetV3": ("mobilenetv3", "mobilenetv3_small_w1", {}),
    "FD-MobileNet": ("fdmobilenet", "fdmobilenet_w1", {}),
    "ShuffleNetV2": ("shufflenetv2", "shufflenetv2_w1", {}),
    "IGCV3": ("igcv3", "igcv3_w1", {}),
    "GhostNet": ("ghostnet", "ghostnet", {}),
    "MnasNet": ("mnasnet", "mnasnet_a1", {}),
    "MixNet": ("mixnet", "mixnet_s", {}),
    "FBNet": ("fbnet", "fbnet_cb", {}),
    "SPNASNet": ("spnasnet", "spnasnet", {}),
    "ProxylessNAS": ("proxylessnas", "proxylessnas_cpu", {}),
    "EfficientNet": ("efficientnet", "efficientnet_b0", {}),
    "EfficientNet-Edge": ("efficientnetedge", "efficientnet_edge_small_b", {}),
}


def network(name: str, width: int, depth: int) -> nn.Module:
    """A network of four classes.

    Args:
        name: among `NETWORKS`.
        width: 1 or 2: channels are a sixteenth or an eighth of what they are, but 16 or 32 at least, for with fewer
            squeeze-excite layers have none left.
        depth: the most units of a stage.
    """
    module, function, instead = NETWORKS[name]
    kind, given = _asked(importlib.import_module(f"pytorchcv.models.{module}"), function)
    dense = name.endswith(("DenseNet", "DenseNet CIFAR"))
    for key, value in given.items():
        if dense and key == "channels":
            given[key] = _dense(given["init_block_channels"] // 2, depth, 4 * width, len(value))
        elif "channels" in key and key != "in_channels" and not dense:
            given[key] = _narrowed(value, width)
        if _is_nested(value):
            given[key] = _cut(given[key], depth)
    if dense:
        given["init_block_channels"] //= 2
    model: nn.Module = kind(**given | {"num_classes": CLASSES, "in_size": (size(name),) * 2} | instead)
    for part in list(model.modules()):
        if isinstance(getattr(part, "final_pool", None), nn.AvgPool2d):
            part.final_pool = nn.AdaptiveAvgPool2d(1)  # instead of a window that needs images of 224 x 224
    return model


def size(name: str) -> int:
    """Pixels a side: at least 2 are left after the last stage, for of fewer numbers a batch norm amplifies rounding."""
    return 32 if NETWORKS[name][0].endswith("_cifar") else 64


def _asked(module: ModuleType, function: str) -> tuple[type[nn.Module], dict[str, Any]]:
    """Return the class and the arguments with which one of pytorchcv's functions makes a network."""
    calls: list[tuple[type[nn.Module], dict[str, Any]]] = []
    networks = {
        name: lambda _kind=kind, **arguments: calls.append((_kind, arguments)) or nn.Module()
        for name, kind in vars(module).items()
        if inspect.isclass(kind)
        and issubclass(kind, nn.Module)
        and {"num_classes", "in_size"} <= inspect.signature(kind).parameters.keys()
    }
    with mock.patch.multiple(module, **networks):
        getattr(module, function)()
    (call,) = calls
    return call


def _narrowed(channels: Any, width: int) -> Any:
    if isinstance(channels, list | tuple):
        return type(channels)(_narrowed(part, width) for part in channels)
    return channels if channels is None or channels < 4 else width * max(16, channels // 128 * 8)


def _dense(channels: int, depth: int, growth: int, stages: int) -> list[list[int]]:
    """Each unit adds `growth` channels, and each transition halves them."""
    stage, found = channels, []
    for _ in range(stages):
        found.append([stage + growth * (unit + 1) for unit in range(depth)])
        stage = found[-1][-1] // 2
    return found


def _is_nested(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(part, list) for part in value)


def _cut(stages: list[Any], depth: int) -> list[Any]:
    if _is_nested(stages):
        return [_cut(stage, depth) for stage in stages]
    return list(itertools.islice(stages, depth))
