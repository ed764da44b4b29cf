"""Layers and models by name, each with the kernel that is to run it when all members are alike."""

from functools import partial

import torch
from torch import nn

from tests.merge.merging import Make
from tests.merge.models import (
    Attribute,
    Dictionary,
    Excited,
    Frozen,
    Functional,
    Gated,
    Recurrent,
    Residual,
    Sequence1d,
    SpatialMean,
    Split,
    Tied,
    Transformer,
    Twice,
    Words,
)


def flat(*layers: nn.Module, width: int = 8) -> nn.Module:
    """Layers, then a linear head on all that they give."""
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, 4))


def pooled(*layers: nn.Module, channels: int = 4) -> nn.Module:
    """Layers for images, then a linear head on the mean of each channel."""
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 4))


def conv(*after: nn.Module, channels: int = 4) -> nn.Module:
    """The same after a convolution."""
    return pooled(nn.Conv2d(3, 4, 3), *after, channels=channels)


def hidden(*after: nn.Module) -> nn.Module:
    """Layers for rows after a linear layer."""
    return flat(nn.Linear(8, 8), *after)


ACTIVATIONS: dict[str, Make] = {
    **{kind.__name__: kind for kind in (nn.ReLU, nn.ReLU6, nn.GELU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.ELU, nn.SELU)},
    **{kind.__name__: kind for kind in (nn.CELU, nn.LeakyReLU, nn.Mish, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh)},
    **{kind.__name__: kind for kind in (nn.Softplus, nn.Softsign, nn.LogSigmoid, nn.Tanhshrink, nn.Softshrink)},
    **{kind.__name__: kind for kind in (nn.Hardshrink, nn.Identity, nn.PReLU, nn.Softmin)},
    "Threshold": partial(nn.Threshold, 0.1, 0.2),
    "GELU-tanh": partial(nn.GELU, "tanh"),
    "ReLU-inplace": partial(nn.ReLU, inplace=True),
    "SiLU-inplace": partial(nn.SiLU, inplace=True),
    "Softmax": partial(nn.Softmax, dim=1),
    "LogSoftmax": partial(nn.LogSoftmax, dim=-1),
    "PReLU-channels": partial(nn.PReLU, 8, 0.3),
}
ROWS: dict[str, tuple[str, Make]] = {
    "linear": ("BatchedLinear", lambda: hidden(nn.Linear(8, 8))),
    "linear-no-bias": ("BatchedLinear", lambda: flat(nn.Tanh(), nn.Linear(8, 8, bias=False))),
    "glu": ("MappedLayer", lambda: flat(nn.Linear(8, 16), nn.GLU())),
    "batch-norm": ("BatchedBatchNorm", lambda: hidden(nn.BatchNorm1d(8))),
    "batch-norm-raw": ("BatchedBatchNorm", lambda: flat(nn.BatchNorm1d(8))),
    "batch-norm-plain": ("BatchedBatchNorm", lambda: flat(nn.BatchNorm1d(8, affine=False))),
    "batch-norm-no-stats": ("BatchedBatchNorm", lambda: flat(nn.BatchNorm1d(8, track_running_stats=False))),
    "layer-norm": ("BatchedLayerNorm", lambda: hidden(nn.LayerNorm(8))),
    "layer-norm-plain": ("BatchedLayerNorm", lambda: hidden(nn.LayerNorm(8, elementwise_affine=False))),
    "group-norm-rows": ("BatchedGroupNorm", lambda: hidden(nn.GroupNorm(2, 8))),
    "rms-norm": ("MappedLayer", lambda: hidden(nn.RMSNorm(8))),
    "dropout": ("BatchedDropout", lambda: hidden(nn.Dropout(0.4), nn.Tanh(), nn.Dropout(0.2))),
    "dropout-inplace": ("BatchedDropout", lambda: hidden(nn.Dropout(0.4, inplace=True), nn.Tanh())),
    "dropout-on-the-batch": ("BatchedDropout", lambda: flat(nn.Dropout(0.4), nn.Dropout(0.0), nn.Dropout(1.0))),
    "alpha-dropout": ("Loop", lambda: hidden(nn.AlphaDropout(0.4), nn.SELU())),
    "rrelu": ("Loop", lambda: hidden(nn.RReLU())),
    "tied": ("BatchedLinear", Tied),
    "twice": ("BatchedLinear", Twice),
    "attribute": ("Loop", Attribute),
    "buffer": ("Loop", partial(Attribute, buffer=True)),
    "dictionary": ("Pairwise", Dictionary),
    "frozen": ("BatchedLinear", Frozen),
}
IMAGES: dict[str, tuple[str, Make]] = {
    "conv": ("GroupedConvolution", lambda: conv(nn.Conv2d(4, 4, 3))),
    "conv-first": ("DenseConvolution", conv),
    "conv-stride": ("GroupedConvolution", lambda: conv(nn.Conv2d(4, 4, 3, stride=2, padding=1))),
    "conv-dilation": ("DenseConvolution", lambda: pooled(nn.Conv2d(3, 4, (3, 1), dilation=(2, 1)))),
    "conv-groups": ("GroupedConvolution", lambda: conv(nn.Conv2d(4, 6, 3, groups=2, bias=False), channels=6)),
    "conv-depthwise": ("GroupedConvolution", lambda: conv(nn.Conv2d(4, 4, 3, groups=4))),
    "conv-depthwise-first": ("GroupedConvolution", lambda: pooled(nn.Conv2d(3, 6, 3, groups=3), channels=6)),
    "conv-same": ("DenseConvolution", lambda: pooled(nn.Conv2d(3, 4, (4, 3), padding="same"))),
    "conv-reflect": ("MappedLayer", lambda: pooled(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"))),
    "conv-circular": ("MappedLayer", lambda: conv(nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"))),
    "conv-transpose": ("MappedLayer", lambda: pooled(nn.ConvTranspose2d(3, 4, 2, stride=2))),
    "batch-norm-2d": ("BatchedBatchNorm", lambda: conv(nn.BatchNorm2d(4, eps=0.1, momentum=0.3))),
    "group-norm": ("BatchedGroupNorm", lambda: conv(nn.GroupNorm(2, 4))),
    "instance-norm": ("Loop", lambda: conv(nn.InstanceNorm2d(4), nn.Tanh())),
    "local-response-norm": ("MappedLayer", lambda: conv(nn.LocalResponseNorm(2))),
    "max-pool": ("BatchedPool", lambda: conv(nn.MaxPool2d(3, 2, 1, ceil_mode=True))),
    "avg-pool": ("BatchedPool", lambda: conv(nn.AvgPool2d(2, count_include_pad=False, padding=1))),
    "adaptive-max": ("BatchedPool", lambda: conv(nn.AdaptiveMaxPool2d((3, 2)))),
    "lp-pool": ("MappedLayer", lambda: conv(nn.Softplus(), nn.LPPool2d(2, 2))),
    "pad": ("BatchedPool", lambda: conv(nn.ZeroPad2d(1), nn.MaxPool2d(2))),
    "pad-reflect": ("MappedLayer", lambda: conv(nn.ReflectionPad2d(1), nn.ConstantPad2d(1, 0.5), nn.MaxPool2d(2))),
    "upsample": ("BatchedPool", lambda: conv(nn.Upsample(scale_factor=2))),
    "bilinear": ("BatchedPool", lambda: conv(nn.Upsample(scale_factor=2, mode="bilinear"))),
    "shuffle": ("MappedLayer", lambda: conv(nn.ChannelShuffle(2), nn.PixelShuffle(2), channels=1)),
    "softmax-2d": ("MappedLayer", lambda: conv(nn.Softmax2d())),
    "dropout-on-images": ("BatchedDropout", lambda: conv(nn.Dropout(0.4), nn.Conv2d(4, 4, 1), nn.Dropout(0.2))),
    "dropout-2d": ("GroupedConvolution", lambda: conv(nn.Dropout2d(0.4), nn.Conv2d(4, 4, 1))),
    "alpha-dropout-on-images": ("GroupedConvolution", lambda: conv(nn.AlphaDropout(0.4), nn.Conv2d(4, 4, 1))),
    "residual": ("Pairwise", lambda: conv(Residual(4), Residual(4))),
    "residual-first": ("Pairwise", lambda: pooled(Residual(3, inplace=False, norm=False), channels=3)),
    "gated": ("Concatenation", lambda: conv(Gated(4), channels=16)),
    "gated-first": ("Concatenation", lambda: pooled(Gated(3), channels=12)),
    "functional": ("Shaping", Functional),
    "functional-dropout": ("Loop", partial(Functional, 0.3)),
    "spatial-mean": ("Shaping", SpatialMean),
    "excited": ("Shaping", Excited),
    "split": ("ShapeOf", Split),
    "unflatten": ("MappedLayer", lambda: conv(nn.Flatten(), nn.Linear(64, 16), nn.Unflatten(1, (4, 2, 2)))),
}
SEQUENCES: dict[str, tuple[str, Make]] = {
    "linear-3d": ("BatchedLinear", lambda: flat(nn.Linear(8, 6), nn.Linear(6, 2), width=10)),
    "batch-norm-3d": ("BatchedBatchNorm", lambda: flat(nn.BatchNorm1d(5), width=40)),
    "layer-norm-2": ("BatchedLayerNorm", lambda: flat(nn.LayerNorm((5, 8)), width=40)),
    "pool-1d": ("BatchedPool", lambda: flat(nn.Conv1d(5, 4, 3), nn.MaxPool1d(2), nn.AvgPool1d(2, 1))),
    "pool-rows": ("MappedLayer", lambda: flat(nn.Linear(8, 8), nn.AvgPool2d((1, 2)), width=20)),
    "pool-channels": ("MappedLayer", lambda: flat(nn.Conv1d(5, 4, 1), nn.MaxPool2d((2, 2)))),
    "transformer": ("BatchedAttention", Transformer),
    "transformer-dropout": ("BatchedAttention", partial(Transformer, p=0.2, bias=False)),
    "attention-weights": ("BatchedLayerNorm", partial(Transformer, needs=True)),
    "encoder": ("BatchedLinear", lambda: flat(nn.TransformerEncoderLayer(8, 2, 9, batch_first=True), width=40)),
    "lstm": ("Loop", partial(Recurrent, nn.LSTM)),
    "gru": ("Loop", partial(Recurrent, nn.GRU)),
    "conv-1d": ("DenseConvolution", Sequence1d),
    "conv-1d-groups": ("GroupedConvolution", partial(Sequence1d, 2, stride=2, padding=1, dilation=2, groups=2)),
    "conv-1d-dropout": ("BatchedDropout", partial(Sequence1d, p=0.3)),
}
TOKENS: dict[str, tuple[str, Make]] = {
    "words": ("BatchedEmbedding", Words),
    "words-tied": ("BatchedLinear", partial(Words, tied=True)),
    "words-padding": ("BatchedEmbedding", partial(Words, padding_idx=3)),
    "words-by-frequency": ("Loop", partial(Words, scale_grad_by_freq=True)),
    "words-max-norm": ("Loop", partial(Words, max_norm=1.0)),
}


def has_batch_norm(make: Make) -> bool:
    """Whether it refuses a batch of one."""
    return any(isinstance(part, nn.BatchNorm1d | nn.InstanceNorm2d) for part in make().modules())


def frozen(make: Make, seed: int = 5) -> nn.Module:
    """A model of fixed weights, which follow from the seed, in eval mode."""
    torch.manual_seed(seed)
    model = make().requires_grad_(False).eval()
    for part in model.modules():
        part.stays = True  # type: ignore[assignment]
    return model
