"""The spaces and the data of the zoo: 4 classes, up to 23 samples to train with and 8 to validate, in batches of 8."""

import torch
from torch import nn

from nasflow.evaluator.loading.loaders import TensorLoader
from nasflow.space.pick import Pick
from tests.zoo.images import CLASSES, NETWORKS, network, size
from tests.zoo.transformer_models import MODELS, WORDS, transformer

ARCHITECTURES = [*NETWORKS, *MODELS]


def build(pick: Pick, name: str, nudge: bool) -> nn.Module:
    """Return an architecture of two widths and two depths; `nudge` moves each weight by one unit in the last place."""
    make = network if name in NETWORKS else transformer
    model = make(name, pick("width", [1, 2]), pick("depth", [1, 2])).double()
    if nudge:
        generator = torch.Generator().manual_seed(7)
        for parameter in model.parameters():
            signs = torch.randint(2, parameter.shape, generator=generator, dtype=parameter.dtype) * 2 - 1
            parameter.data *= 1 + signs * torch.finfo(parameter.dtype).eps
    return model


def samples(name: str, steps: int) -> tuple[TensorLoader, TensorLoader]:
    """Return an architecture's data in `steps` batches, 3 at most: images, words, or series of two channels."""
    generator = torch.Generator().manual_seed(3)
    fed = "pixel_values" if name in NETWORKS else MODELS[name][2][0]
    if fed == "input_ids":
        x = torch.randint(3, WORDS, (31, 12), generator=generator)
    elif fed == "past_values":
        x = torch.randn(31, 32, 2, generator=generator)
    else:
        pixels = size(name) if name in NETWORKS else 32
        x = torch.randn(31, 3, pixels, pixels, generator=generator)
    y = torch.arange(31) % CLASSES
    return TensorLoader((x[:23][: 8 * steps], y[:23][: 8 * steps]), 8, shuffle=True), TensorLoader((x[23:], y[23:]), 8)
