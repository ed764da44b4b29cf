"""The layout of a model's picture: one box per module, with containers drawn around their children."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nasflow.report.model.tree import Block

_WIDTH = 460
_ROW, _HEAD, _GAP, _PAD, _INDENT = 26, 24, 6, 8, 10
_NARROW = 200
_CHARACTER = 6.4  # pixels, on average
_MOST = 80  # boxes
_FAMILIES = {  # by class name
    "conv": re.compile("conv", re.IGNORECASE),
    "linear": re.compile("linear|embedding|attention|lstm|gru|rnn", re.IGNORECASE),
    "norm": re.compile("norm", re.IGNORECASE),
    "pool": re.compile("pool|upsample|flatten", re.IGNORECASE),
    "activation": re.compile("elu$|gelu|silu|tanh|sigmoid|softmax|mish|hardswish|dropout", re.IGNORECASE),
}


@dataclass(frozen=True)
class Box:
    """A module's rectangle and its texts. Lengths are in pixels.

    Attributes:
        family: CSS class that colors the box.
        hint: text of the tooltip.
        kind: class of the module, cut to the box.
        detail: name of a container, otherwise the arguments of the module; cut to the box.
        count: number of parameters, empty if there are none.
    """

    x: int
    y: int
    width: int
    height: int
    family: str
    hint: str
    kind: str
    detail: str
    count: str


@dataclass(frozen=True)
class Picture:
    """The boxes of a model; `more` modules are left out."""

    title: str
    width: int
    height: int
    boxes: Sequence[Box]
    more: int


@dataclass(frozen=True)
class _Place:
    block: Block
    x: int
    y: int
    width: int
    height: int


def model_picture(model: Block) -> Picture:
    """Lay out a model. Of a large model, only the first 80 modules have boxes."""
    places = list(_places(model, 1, 1, _WIDTH - 2))
    shown, more = places[:_MOST], max(len(places) - _MOST, 0)
    bottom = max(_bottom(place) for place in shown) + _PAD if more else places[0].y + places[0].height
    height = bottom + (_ROW if more else 2)
    title = f"{model.kind}: {model.parameters:,} parameters"
    return Picture(title, _WIDTH, height, [_box(place, bottom) for place in shown], more)


def _bottom(place: _Place) -> int:
    """The lower edge of a box's head. Containers that are cut off end with the picture."""
    return place.y + (_HEAD if place.block.children else _ROW)


def _places(block: Block, x: int, y: int, width: int) -> Iterator[_Place]:
    """Place a block, then its children."""
    yield _Place(block, x, y, width, _height(block))
    y += _HEAD
    indent = _INDENT if width > _NARROW else 1
    for child in block.children:
        yield from _places(child, x + indent, y, width - 2 * indent)
        y += _height(child) + _GAP


def _height(block: Block) -> int:
    if not block.children:
        return _ROW
    return _HEAD + sum(_height(child) + _GAP for child in block.children) - _GAP + _PAD


def _box(place: _Place, bottom: int) -> Box:
    block = place.block
    count = f"{block.parameters:,}" if block.parameters else ""
    times = f"{block.times} x " if block.times > 1 else ""
    room = int((place.width - 2 * _PAD) / _CHARACTER) - len(count) - 2
    kind = _fitted(f"{times}{block.kind}", room)
    hint = " ".join(part for part in (block.name, f"{block.kind}({block.detail})") if part)
    return Box(
        x=place.x,
        y=place.y,
        width=place.width,
        height=min(place.height, bottom - place.y),
        family="container" if block.children else _family(block.kind),
        hint=f"{hint}: {block.parameters:,} parameters",
        kind=kind,
        detail=_fitted(block.name if block.children else block.detail, room - len(kind) - 1),
        count=count,
    )


def _family(kind: str) -> str:
    return next((family for family, pattern in _FAMILIES.items() if pattern.search(kind)), "other")


def _fitted(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(room - 1, 0)] + "…" if room > 1 else ""
