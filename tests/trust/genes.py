"""The genes of random models: each writes a few lines for the current value, or none if it does not fit."""

import random
from collections.abc import Callable

from tests.trust.model import Draft

Gene = Callable[[Draft, random.Random], None]
GENES: dict[str, Gene] = {}

ROWS, SEQUENCES, IMAGES = 2, 3, 4
_SMOOTH = ("tanh", "sigmoid", "silu", "gelu", "softplus", "sin")
_LAYERS = ("nn.Tanh()", "nn.GELU()", "nn.SiLU()", "nn.Sigmoid()", "nn.ELU()", "nn.Mish()", "nn.Identity()")


def gene(*dims: int, repeat: int = 1) -> Callable[[Gene], Gene]:
    """Add a gene for values with so many dimensions, by default any; drawn `repeat` times as often as others."""

    def add(write: Gene) -> Gene:
        def fitting(draft: Draft, rng: random.Random) -> None:
            if draft.is_float and (not dims or len(draft.shape) in dims):
                write(draft, rng)

        for copy in range(repeat):
            GENES[write.__name__ + "+" * copy] = fitting
        return write

    return add


def width(rng: random.Random) -> int:
    """Return the width of a layer."""
    return rng.choice((2, 3, 4, 6))


# --- of any value ------------------------------------------------------------------------------------------------


@gene(repeat=4)
def activation(d: Draft, rng: random.Random) -> None:
    kind = rng.randrange(4)
    if kind == 0:
        d.step(f"{d.layer(rng.choice(('nn.ReLU()', *_LAYERS)))}({d.current})")
    elif kind == 1:
        name = rng.choice(("F.relu", "torch.relu", *(f"F.{name}" for name in _SMOOTH[:-1]), "torch.sin"))
        d.step(f"{name}({d.current})")
    elif kind == 2:
        d.step(f"{d.current}.{rng.choice(('relu', 'tanh', 'sigmoid', 'abs', 'square', 'sin'))}()")
    else:
        d.step(f"{d.layer('nn.LeakyReLU(0.2)')}({d.current})")


@gene(repeat=2)
def in_place(d: Draft, rng: random.Random) -> None:
    """Write into a value that was made for it; sometimes others read it before."""
    x = d.step(f"{d.current} * {rng.choice((0.5, 1.5))}")
    how = rng.randrange(5)
    if how == 0:
        d.step(f"{d.layer('nn.ReLU(inplace=True)')}({x})")
    elif how == 1:
        d.step(f"F.relu({x}, inplace=True)")
    elif how == 2:
        d.step(f"{x}.{rng.choice(('relu_', 'tanh_', 'sigmoid_', 'neg_'))}()")
    elif how == 3:
        d.do(f"{x} += 0.25")
    else:
        d.do(f"{x} *= {d.other(rng) or 2.0}")


@gene(repeat=3)
def combine(d: Draft, rng: random.Random) -> None:
    """Combine the value with one that others read too."""
    if other := d.other(rng):
        operation = rng.choice(("{} + {}", "{} - {}", "{} * {}", "torch.maximum({}, {})", "torch.add({}, {})"))
        d.step(operation.format(*rng.sample((d.current, other), 2)))


@gene()
def with_number(d: Draft, rng: random.Random) -> None:
    d.step(
        rng.choice(("2.0 - {}", "{} / 3.0", "0.5 * {}", "{} + 1", "{} - 0.1", "-{}", "{}.clamp(-1, 1)")).format(
            d.current
        )
    )


@gene()
def with_itself(d: Draft, rng: random.Random) -> None:
    d.step(rng.choice(("{0} * {0}", "{0} + {0}", "torch.where({0} > 0, {0}, 0.1 * {0})")).format(d.current))


@gene()
def detached(d: Draft, rng: random.Random) -> None:
    how = rng.randrange(3)
    if how == 0:
        d.step(f"{d.current}.detach()")
    elif how == 1:
        d.step(f"{d.current} + {d.current}.detach()")
    elif other := d.other(rng):
        d.step(f"{d.current} * {other}.detach()")


@gene()
def earlier(d: Draft, rng: random.Random) -> None:
    """Continue from another value: what came after it is unused, or is read again later."""
    names = [name for name, value in d.values.items() if value.is_floating_point() and value.ndim == len(d.shape)]
    d.current = rng.choice(names)


@gene()
def drawn(d: Draft, rng: random.Random) -> None:
    how = rng.randrange(6)
    if how < 3:
        d.step(f"{d.layer(f'nn.Dropout({rng.choice((0.1, 0.4, 0.0))})')}({d.current})")
    elif how == 3:
        d.step(f"F.dropout({d.current}, 0.3, self.training)")
    elif how == 4:
        d.step(f"{d.current} + 0.1 * torch.randn_like({d.current})")
    else:
        d.step(f"{d.layer('nn.AlphaDropout(0.2)')}({d.current})")


@gene()
def normalized(d: Draft, rng: random.Random) -> None:
    """Normalize over the last dimension."""
    size = d.shape[-1]
    options = [f"nn.LayerNorm({size})", f"nn.LayerNorm({size}, bias=False)", f"nn.RMSNorm({size})"]
    options.append(f"nn.LayerNorm({size}, elementwise_affine=False)")
    if size > 1:
        d.step(f"{d.layer(rng.choice(options))}({d.current})")


@gene()
def scaled(d: Draft, rng: random.Random) -> None:
    """Scale by a parameter of the model, and sometimes add a buffer."""
    scale = d.layer(f"nn.Parameter(torch.rand({d.shape[-1]}))")
    d.step(f"{d.current} * {scale}")
    if rng.random() < 0.3:
        d.step(f"{d.current} + {scale}")
    if rng.random() < 0.5:
        name = f"b{len(d.layers)}"
        d.note(f"self.register_buffer('{name}', torch.rand({d.shape[-1]}))")
        d.step(f"{d.current} - self.{name}")


@gene()
def counted(d: Draft, rng: random.Random) -> None:
    """Write a buffer in the forward, and sometimes read it."""
    name = f"b{len(d.layers)}"
    d.note(f"self.register_buffer('{name}', torch.zeros(()))")
    if rng.random() < 0.5:
        d.do(f"self.{name}.add_(1)")
    else:
        d.do(f"self.{name}.mul_(0.9).add_({d.current}.detach().mean() * 0.1)")
    if rng.random() < 0.5:
        d.step(f"{d.current} + 0.1 * self.{name}")


@gene()
def never_used(d: Draft, rng: random.Random) -> None:
    d.layer(f"nn.Linear({width(rng)}, 2)")


@gene()
def in_vain(d: Draft, rng: random.Random) -> None:
    """Call a layer with an output that nothing reads."""
    d.step(f"{d.linear(width(rng))}({d.current})", goes_on=False)


@gene()
def frozen(d: Draft, rng: random.Random) -> None:
    """Freeze an earlier layer, or parts of it."""
    if d.linears:
        name = rng.choice(d.linears)[0]
        d.note(f"{name}{rng.choice(('', '.weight', '.weight'))}.requires_grad_(False)")


@gene()
def part(d: Draft, rng: random.Random) -> None:
    """Call a module with its own forward."""
    size = d.shape[-1]
    options = [
        f"Block({size}, {rng.choice(_LAYERS)})",
        f"SometimesUsed({size})",
        f"Hypernetwork({size})",
        f"Looks({size})",
        f"Pairs({size})",
        f"Renormalized({size})",
    ]
    d.step(f"{d.layer(rng.choice(options))}({d.current})")


@gene()
def hidden(d: Draft, rng: random.Random) -> None:
    """Do what a trace can't see, or what it refuses."""
    size = d.shape[-1]
    d.hidden = True
    d.step(f"{d.layer(rng.choice((f'Slope({size})', f'Shrinks({size})', f'Counts({size})')))}({d.current})")


# --- layers that are shared --------------------------------------------------------------------------------------


@gene(repeat=5)
def linear(d: Draft, rng: random.Random) -> None:
    d.step(f"{d.linear(width(rng), bias=rng.random() < 0.8)}({d.current})")


@gene(repeat=2)
def again(d: Draft, rng: random.Random) -> None:
    """Call an earlier layer again, or a new one twice."""
    fitting = [name for name, inputs, _ in d.linears if inputs == d.shape[-1]]
    if fitting:
        d.step(f"{rng.choice(fitting)}({d.current})")
        return
    name = d.linear(d.shape[-1])
    d.step(f"{name}({d.current})")
    d.step(f"torch.{rng.choice(('relu', 'tanh'))}({d.current})")
    d.step(f"{name}({d.current})")


@gene()
def tied(d: Draft, rng: random.Random) -> None:
    """Make a new layer with an old weight or bias."""
    fitting = [entry for entry in d.linears if entry[1] == d.shape[-1]]
    if fitting:
        name, _, outputs = rng.choice(fitting)
        new = d.linear(outputs)
        d.note(f"{new}.weight = {name}.weight")
        d.step(f"{new}({d.current})")


@gene()
def functional(d: Draft, rng: random.Random) -> None:
    """Use the weight of an earlier layer directly, as it is or transposed."""
    straight = [name for name, inputs, _ in d.linears if inputs == d.shape[-1]]
    turned = [name for name, _, outputs in d.linears if outputs == d.shape[-1]]
    if straight and (rng.random() < 0.5 or not turned):
        d.step(f"F.linear({d.current}, {rng.choice(straight)}.weight)")
    elif turned:
        how = rng.choice(("F.linear({}, {}.weight.t())", "{} @ {}.weight"))
        d.step(how.format(d.current, rng.choice(turned)))


@gene()
def parametrized(d: Draft, rng: random.Random) -> None:
    kind = rng.choice(("parametrizations.weight_norm", "parametrizations.spectral_norm", "weight_norm"))
    layer = f"nn.Linear({d.shape[-1]}, {max(2, d.shape[-1])})"
    d.step(f"{d.layer(f'nn.utils.{kind}({layer})')}({d.current})")
