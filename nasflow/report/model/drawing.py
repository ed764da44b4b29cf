"""A model as a picture: a box a module, containers around what they contain.

SVG that takes its colors from the page it stands in (`var(--NAME)`), so that it suits a light page and a dark one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from nasflow.report.model.tree import Block

_WIDTH = 460
_ROW, _HEAD, _GAP, _PAD, _INDENT = 26, 24, 6, 8, 10
_NARROW = 200
_CHARACTER = 6.4  # pixels, on average
_MOST = 80  # boxes
_FAMILIES = {  # by what the class is called
    "conv": re.compile("conv", re.IGNORECASE),
    "linear": re.compile("linear|embedding|attention|lstm|gru|rnn", re.IGNORECASE),
    "norm": re.compile("norm", re.IGNORECASE),
    "pool": re.compile("pool|upsample|flatten", re.IGNORECASE),
    "activation": re.compile("elu$|gelu|silu|tanh|sigmoid|softmax|mish|hardswish|dropout", re.IGNORECASE),
}


@dataclass(frozen=True)
class _Place:
    block: Block
    x: int
    y: int
    width: int
    height: int


def model_svg(model: Block) -> str:
    """The picture; of a large model its first 80 boxes."""
    places = list(_places(model, 1, 1, _WIDTH - 2))
    shown, left = places[:_MOST], len(places) - _MOST
    bottom = max(_bottom(place) for place in shown) + _PAD if left > 0 else places[0].y + places[0].height
    height = bottom + (_ROW if left > 0 else 2)
    more = f'<text x="{_PAD}" y="{bottom + 17}" class="dim">… and {left} more modules</text>' if left > 0 else ""
    title = f"{model.kind}: {model.parameters:,} parameters"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="model" role="img" aria-label="{escape(title)}" '
        f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">'
        + "".join(part for place in shown for part in _box(place, bottom))
        + f"{more}</svg>"
    )


def _bottom(place: _Place) -> int:
    """Of a box's head: the frames of containers that are cut off end where the picture does."""
    return place.y + (_HEAD if place.block.children else _ROW)


def _places(block: Block, x: int, y: int, width: int) -> Iterator[_Place]:
    """A block before those in it."""
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


def _box(place: _Place, bottom: int) -> Iterator[str]:
    block = place.block
    family = "container" if block.children else _family(block.kind)
    height = min(place.height, bottom - place.y)
    hint = " ".join(part for part in (block.name, f"{block.kind}({block.detail})") if part)
    yield f'<g class="{family}"><title>{escape(hint)}: {block.parameters:,} parameters</title>'
    yield f'<rect x="{place.x}" y="{place.y}" width="{place.width}" height="{height}" rx="4"/>'
    numbers = f"{block.parameters:,}" if block.parameters else ""
    times = f"{block.times} x " if block.times > 1 else ""
    room = int((place.width - 2 * _PAD) / _CHARACTER) - len(numbers) - 2
    kind = _fitted(f"{times}{block.kind}", room)
    detail = _fitted(block.name if block.children else block.detail, room - len(kind) - 1)
    words = f'{escape(kind)}<tspan class="dim" dx="6">{escape(detail)}</tspan>'
    yield f'<text x="{place.x + _PAD}" y="{place.y + 17}">{words}</text>'
    yield f'<text x="{place.x + place.width - _PAD}" y="{place.y + 17}" class="count">{numbers}</text></g>'


def _family(kind: str) -> str:
    return next((family for family, pattern in _FAMILIES.items() if pattern.search(kind)), "other")


def _fitted(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(room - 1, 0)] + "…" if room > 1 else ""
