"""Genes of vectors, sequences and images, and conversions between them."""

import random

from tests.trust.genes import IMAGES, ROWS, SEQUENCES, gene, width
from tests.trust.model import Draft

# --- vectors -----------------------------------------------------------------------------------------------------


@gene(ROWS)
def batch_norm(d: Draft, rng: random.Random) -> None:
    size = d.shape[1]
    options = rng.choice(("", "", ", affine=False", ", track_running_stats=False", ", momentum=0.3", ", momentum=None"))
    name = d.layer(f"nn.BatchNorm1d({size}{options})")
    d.step(f"{name}({d.current})")
    if rng.random() < 0.2:
        d.step(f"{name}(torch.tanh({d.current}))")


@gene(ROWS)
def group_norm(d: Draft, rng: random.Random) -> None:
    if d.shape[1] % 2 == 0 and d.shape[1] > 2:
        d.step(f"{d.layer(f'nn.GroupNorm(2, {d.shape[1]})')}({d.current})")


@gene(ROWS)
def cells(d: Draft, rng: random.Random) -> None:
    kind = rng.choice(("RNNCell", "RNNCell", "GRUCell"))
    d.step(f"{d.layer(f'Cells(nn.{kind}({d.shape[1]}, {width(rng)}), {rng.choice((1, 2))})')}({d.current})")


@gene(ROWS)
def concatenated(d: Draft, rng: random.Random) -> None:
    others = [name for name, value in d.values.items() if value.ndim == 2 and value.is_floating_point()]
    d.step(f"torch.cat([{d.current}, {rng.choice(others)}], {rng.choice(('1', 'dim=-1'))})")
    if d.shape[1] > 8:
        d.step(f"{d.linear(width(rng))}({d.current})")


@gene(ROWS)
def parts_of(d: Draft, rng: random.Random) -> None:
    if d.shape[1] % 2 == 0:
        pair = rng.choice(("{0}.chunk(2, 1)", "torch.split({0}, {0}.shape[1] // 2, 1)"))
        whole = d.current
        a = d.step(f"{pair.format(whole)}[0]")
        d.step(f"{a} * {pair.format(whole)}[1]")


@gene(ROWS)
def reshaped(d: Draft, rng: random.Random) -> None:
    """Reshape to a sequence or an image."""
    if d.shape[1] % 2 == 0:
        d.step(f"{d.current}.view({d.current}.shape[0], 2, -1)")
    else:
        d.step(f"{d.current}.unsqueeze(1)")


@gene(ROWS)
def summed(d: Draft, rng: random.Random) -> None:
    how = ("{0} - {0}.mean(1, keepdim=True)", "torch.softmax({0}, 1)", "F.normalize({0}, dim=1)", "{0}.log_softmax(-1)")
    d.step(rng.choice(how).format(d.current))


@gene(ROWS)
def mapped(d: Draft, rng: random.Random) -> None:
    """Call layers without a kernel of their own."""
    size = d.shape[1]
    if rng.random() < 0.5:
        d.step(f"{d.layer('nn.PReLU()')}({d.current})")
    else:
        d.step(f"{d.layer(f'nn.Bilinear({size}, {size}, {width(rng)})')}({d.current}, {d.current})")


# --- sequences ---------------------------------------------------------------------------------------------------


@gene(SEQUENCES, repeat=3)
def attention(d: Draft, rng: random.Random) -> None:
    size = d.shape[2]
    heads = 2 if size % 2 == 0 else 1
    name = d.layer(f"nn.MultiheadAttention({size}, {heads}, batch_first=True, bias={rng.random() < 0.7})")
    x = d.current
    weights = rng.choice((", need_weights=False", ", need_weights=False", ""))
    d.step(f"{name}({x}, {x}, {x}{weights})[0]")
    if rng.random() < 0.5:
        d.step(f"{d.current} + {x}")


@gene(SEQUENCES)
def encoder(d: Draft, rng: random.Random) -> None:
    size, p = d.shape[2], rng.choice((0.0, 0.1))
    options = f"dropout={p}, batch_first=True, norm_first={rng.random() < 0.5}"
    d.step(f"{d.layer(f'nn.TransformerEncoderLayer({size}, 1, 4, {options})')}({d.current})")


@gene(SEQUENCES)
def along(d: Draft, rng: random.Random) -> None:
    kind, size = rng.choice(("RNNCell", "GRUCell", "RNN", "GRU", "LSTM")), width(rng)
    if kind.endswith("Cell"):
        d.step(f"{d.layer(f'Along(nn.{kind}({d.shape[2]}, {size}))')}({d.current})")
    else:
        d.step(f"{d.layer(f'Last(nn.{kind}({d.shape[2]}, {size}, batch_first=True))')}({d.current})")


@gene(SEQUENCES, repeat=2)
def convolved(d: Draft, rng: random.Random) -> None:
    d.step(f"{d.current}.transpose(1, 2)")
    inputs, outputs = d.shape[1], width(rng)
    d.step(f"{d.layer(f'nn.Conv1d({inputs}, {outputs}, {rng.choice((1, 3))}, padding=1)')}({d.current})")
    if rng.random() < 0.4:
        d.step(f"{d.layer(f'nn.BatchNorm1d({outputs})')}({d.current})")
    if rng.random() < 0.4:
        pools = ("nn.MaxPool1d(2)", "nn.AvgPool1d(2)") if d.shape[2] > 1 else ()
        d.step(f"{d.layer(rng.choice((*pools, 'nn.Dropout1d(0.3)')))}({d.current})")
    if rng.random() < 0.7:
        d.step(f"{d.current}.permute(0, 2, 1)")


@gene(SEQUENCES, repeat=2)
def to_rows(d: Draft, rng: random.Random) -> None:
    flat = "{}.flatten(1)" if d.shape[1] * d.shape[2] <= 18 else "{}.mean(1)"
    d.step(rng.choice(("{}.mean(1)", "{}.sum(dim=1)", "{}[:, -1]", "{}.amax(1)", flat)).format(d.current))


# --- images ------------------------------------------------------------------------------------------------------


@gene(IMAGES, repeat=5)
def convolution(d: Draft, rng: random.Random) -> None:
    inputs, outputs = d.shape[1], width(rng)
    kernel = rng.choice((1, 3)) if min(d.shape[2:]) > 2 else 1
    padded = f", padding={kernel // 2}"
    options = rng.choice(("", padded, padded, ", bias=False", ", padding='same'"))
    if rng.random() < 0.2 and inputs % 2 == 0 and outputs % 2 == 0:
        options += ", groups=2"
    elif rng.random() < 0.1:
        options = f"{padded}, padding_mode='reflect'"
    elif rng.random() < 0.2:
        outputs, options = inputs, options + f", groups={inputs}"
    name = d.layer(f"nn.Conv2d({inputs}, {outputs}, {kernel}{options})")
    d.step(f"{name}({d.current})")
    if rng.random() < 0.2 and inputs == outputs and min(d.shape[2:]) > 2:
        d.step(f"{name}({d.current})")


@gene(IMAGES, repeat=3)
def image_norm(d: Draft, rng: random.Random) -> None:
    size = d.shape[1]
    options = [f"nn.BatchNorm2d({size})", f"nn.BatchNorm2d({size})", f"nn.BatchNorm2d({size}, affine=False)"]
    options += [f"nn.GroupNorm(1, {size})", f"nn.GroupNorm({size}, {size}, affine=False)"]
    if d.shape[2] * d.shape[3] > 1:
        options.append(f"nn.InstanceNorm2d({size}, affine=True)")
    name = d.layer(rng.choice(options))
    d.step(f"{name}({d.current})")
    if rng.random() < 0.2:
        d.step(f"torch.relu({d.current})")
        d.step(f"{name}({d.current})")


@gene(IMAGES, repeat=2)
def pooled(d: Draft, rng: random.Random) -> None:
    options = ["nn.MaxPool2d(3, 1, 1)", "nn.AvgPool2d(3, 1, 1)", "nn.AdaptiveAvgPool2d(2)", "nn.AdaptiveMaxPool2d(2)"]
    if min(d.shape[2:]) >= 2:
        options += ["nn.MaxPool2d(2)", "nn.AvgPool2d(2)"]
    if max(d.shape[2:]) <= 2:
        options += ["nn.Upsample(scale_factor=2)", "nn.ZeroPad2d(1)"]
    if rng.random() < 0.2 and min(d.shape[2:]) >= 2:
        d.step(f"F.{rng.choice(('max_pool2d', 'avg_pool2d'))}({d.current}, 2)")
    else:
        d.step(f"{d.layer(rng.choice(options))}({d.current})")


@gene(IMAGES)
def image_part(d: Draft, rng: random.Random) -> None:
    size = d.shape[1]
    if rng.random() < 0.3:
        d.step(f"{d.layer(f'nn.ConvTranspose2d({size}, {width(rng)}, 1)')}({d.current})")
    elif rng.random() < 0.4:
        d.step(f"{d.layer(f'nn.PReLU({size})')}({d.current})")
    elif rng.random() < 0.5:
        d.step(f"{d.layer('nn.Dropout2d(0.3)')}({d.current})")
    else:  # squeeze and excitation
        gate = d.layer(f"nn.Conv2d({size}, {size}, 1)")
        d.step(f"{d.current} * torch.sigmoid({gate}(F.adaptive_avg_pool2d({d.current}, 1)))")


@gene(IMAGES)
def channels(d: Draft, rng: random.Random) -> None:
    others = [name for name, value in d.values.items() if value.ndim == 4 and value.shape[2:] == d.shape[2:]]
    if d.shape[1] <= 6:
        d.step(f"torch.cat([{d.current}, {rng.choice(others)}], 1)")


@gene(IMAGES)
def image_to_rows(d: Draft, rng: random.Random) -> None:
    flat = "torch.flatten({}, 1)" if d.shape[1:].numel() <= 32 else "{}.mean((2, 3))"
    d.step(rng.choice(("{}.mean((2, 3))", "{}.mean(dim=[-2, -1])", "{}.amax((2, 3))", flat, flat)).format(d.current))


def finish(d: Draft, outputs: int) -> None:
    """Make the current value the outputs `[B, outputs]`."""
    if len(d.shape) == IMAGES:
        d.step(f"{d.current}.mean((2, 3))")
    if len(d.shape) == SEQUENCES:
        d.step(f"{d.current}.mean(1)")
    d.step(f"{d.linear(outputs)}({d.current})")
