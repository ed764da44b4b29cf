"""Draws a unit's plan: a lane for each member, and a box for each step over the lanes that it serves.

The SVG has a white background, so that it is readable on light and dark pages. Colours are attributes, not CSS, because
not every program that draws SVG supports CSS.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from xml.sax.saxutils import escape

from nasflow.merge.view.summary import Outline, Price, Step

LANE, GAP, ROW, BOX = 142, 16, 66, 48  # widths of a lane and of the gap between two; heights of a row and of a box
LEFT, TOP = 20, 92
_LARGE, _SMALL = 11, 9.5  # font sizes
_WIDE = 0.6  # a character's average width, as a share of the font size
_COLORS = {  # background and frame
    "input": ("#ececf4", "#55557a"),
    "shared": ("#dbe7fb", "#2f62b5"),
    "batched": ("#d8f0df", "#23794a"),
    "loop": ("#fbf3e0", "#a07a1f"),
    "output": ("#ececf4", "#55557a"),
}
_GATHER = "#c7400c"
_LEGEND = 530  # width
_WORDS = {
    "shared": "computed once for all",
    "batched": "one kernel for all its members",
    "loop": "one by one",
}


@dataclass(frozen=True)
class _Cell:
    """A step and its position; each of `runs` is a box over adjacent lanes."""

    row: int
    kind: str
    runs: tuple[tuple[int, ...], ...]
    lines: tuple[str, ...]
    hint: str
    gathers: int

    @property
    def lanes(self) -> list[int]:
        return [lane for run in self.runs for lane in run]


def plan_svg(
    outline: Outline, trials: Sequence[int | str], prices: Sequence[Price] | None = None, title: Sequence[str] = ()
) -> str:
    """Return the picture as SVG.

    Args:
        outline: of the unit.
        trials: what its members are called, such as by number, in the order of their positions.
        prices: of its steps, shown in microseconds; None to leave them out.
        title: lines above the lanes, two at most.
    """
    cells = _cells(outline, len(trials), prices)
    rows = max(cell.row for cell in cells) + 1
    width = max(2 * LEFT + len(trials) * (LANE + GAP) - GAP, 2 * LEFT + _LEGEND)
    height = TOP + rows * ROW + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="{_LARGE}" text-anchor="middle" fill="#222">',
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8" fill="#fff" stroke="#bbb"/>',
        *_heading(title, trials, width, rows),
        *_edges(outline, cells),
        *(part for cell in cells for part in (*_boxes(cell), *_texts(cell), *_badge(cell))),
        *_legend(TOP + rows * ROW + 14),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _cells(outline: Outline, members: int, prices: Sequence[Price] | None) -> list[_Cell]:
    """Place every step below all earlier ones in the lanes that it spans, and so below what it reads."""
    cells: list[_Cell] = []
    free = [0] * members
    for index, step in enumerate(outline.steps):
        lanes = step.members or tuple(range(members))
        reach = range(lanes[0], lanes[-1] + 1)
        row = max(free[lane] for lane in reach)
        for lane in reach:
            free[lane] = row + 1
        runs = tuple((lane,) for lane in lanes) if step.kind == "loop" else _runs(lanes)
        cells.append(_Cell(row, step.kind, runs, *_words(step, prices[index] if prices else None), step.gathers))
    everyone, lines = (tuple(range(members)),), ("outputs of all members", "to their losses")
    cells.append(_Cell(max(free), "output", everyone, lines, "; ".join(lines), outline.output_gathers))
    return cells


def _runs(lanes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return adjacent lanes together: 0, 1, 3 is (0, 1), (3)."""
    groups = groupby(enumerate(lanes), key=lambda pair: pair[1] - pair[0])
    return tuple(tuple(lane for _, lane in group) for _, group in groups)


def _words(step: Step, price: Price | None) -> tuple[tuple[str, ...], str]:
    """Return the lines in a box, and the tooltip."""
    how = "read once" if step.kind == "input" else step.kernel
    if price is not None and step.kind != "input":
        how += f", {price.seconds * 1e6:.0f} µs" + (" in all" if step.kind == "loop" and len(step.members) > 1 else "")
    lines = (step.operation, step.shapes, how)
    return lines, "; ".join([*lines, step.reason] if step.reason else lines)


def _x(lane: int) -> int:
    return LEFT + lane * (LANE + GAP)


def _middle(lane: int) -> float:
    return _x(lane) + LANE / 2


def _heading(title: Sequence[str], trials: Sequence[int | str], width: int, rows: int) -> Iterator[str]:
    for line, (text, size) in enumerate(zip(title, (13, _LARGE), strict=False)):
        words = _fitted(text, width - 2 * LEFT, size)
        yield _text(LEFT, 26 + 17 * line, words, f'text-anchor="start" font-size="{size}"')
    for lane, trial in enumerate(trials):
        place = f'x="{_x(lane) - 4}" y="{TOP - 32}" width="{LANE + 8}" height="{rows * ROW + 28}"'
        yield f'<rect {place} rx="6" fill="#f6f6f8"/>'
        yield _text(_middle(lane), TOP - 14, _fitted(f"trial {trial}", LANE, _LARGE), 'font-weight="bold"')


def _boxes(cell: _Cell) -> Iterator[str]:
    ground, frame = _COLORS[cell.kind]
    top = TOP + cell.row * ROW
    dash = ' stroke-dasharray="4 3"' if cell.kind == "loop" else ""
    yield f'<g fill="{ground}" stroke="{frame}"{dash}><title>{escape(cell.hint)}</title>'
    for before, after in pairwise(cell.runs):
        if cell.kind != "loop":
            start, stop = _x(before[-1]) + LANE, _x(after[0])
            yield f'<path d="M{start} {top + BOX // 2}H{stop}" stroke-width="4"/>'
    for run in cell.runs:
        wide = _x(run[-1]) + LANE - _x(run[0])
        yield f'<rect x="{_x(run[0])}" y="{top}" width="{wide}" height="{BOX}" rx="5"/>'
    yield "</g>"


def _texts(cell: _Cell) -> Iterator[str]:
    for run in cell.runs:
        x, room = (_x(run[0]) + _x(run[-1]) + LANE) / 2, _x(run[-1]) + LANE - _x(run[0]) - 8
        y = TOP + cell.row * ROW + BOX / 2 + 4 - 7 * (len(cell.lines) - 1)
        for place, line in enumerate(cell.lines):
            size, color = (_SMALL, ' fill="#444"') if place else (_LARGE, "")
            yield _text(x, y + 14 * place, _fitted(line, room, size), f'font-size="{size}"{color}')


def _badge(cell: _Cell) -> Iterator[str]:
    if cell.gathers:
        x, y = _x(cell.lanes[0]) + 4, TOP + cell.row * ROW - 8
        yield f'<rect x="{x}" y="{y}" width="38" height="12" rx="6" fill="{_GATHER}"/>'
        yield _text(x + 19, y + 9, "gather", 'font-size="9" fill="#fff"')


def _edges(outline: Outline, cells: Sequence[_Cell]) -> Iterator[str]:
    """Yield lines from each value to its readers, in the member's lane, around boxes in between."""
    filled = {(cell.row, lane) for cell in cells for lane in cell.lanes}
    reads = [(index, source, lane) for index, step in enumerate(outline.steps) for source, lane in step.reads]
    reads += [(len(outline.steps), source, lane) for lane, source in enumerate(outline.outputs)]
    edges: dict[bool, list[str]] = {False: [], True: []}  # by whether the reader gathers
    for index, source, lane in reads:
        start = TOP + cells[source].row * ROW + BOX
        stop = TOP + cells[index].row * ROW
        x = _middle(lane)
        between = range(cells[source].row + 1, cells[index].row)
        if any((row, lane) in filled for row in between):
            side = _x(lane) + LANE + GAP // 2
            path = f"M{x + 30:g} {start}V{start + 4}L{side} {start + 12}V{stop - 12}L{x + 30:g} {stop - 4}V{stop}"
        else:
            path = f"M{x:g} {start}V{stop}"
        edges[cells[index].gathers > 0].append(path)
    yield f'<path fill="none" stroke="#999" d="{"".join(edges[False])}"/>'
    yield f'<path fill="none" stroke="{_GATHER}" stroke-width="1.5" d="{"".join(edges[True])}"/>'


def _legend(top: int) -> Iterator[str]:
    x = LEFT
    for kind, words in _WORDS.items():
        ground, frame = _COLORS[kind]
        dash = ' stroke-dasharray="4 3"' if kind == "loop" else ""
        yield f'<rect x="{x}" y="{top}" width="14" height="10" rx="2" fill="{ground}" stroke="{frame}"{dash}/>'
        yield _text(x + 20, top + 9, words, 'font-size="10" text-anchor="start"')
        x += 34 + int(len(words) * 10 * _WIDE)
    yield f'<path d="M{x} {top + 5}h14" stroke="{_GATHER}" stroke-width="1.5"/>'
    yield _text(x + 20, top + 9, "gather", 'font-size="10" text-anchor="start"')


def _text(x: float, y: float, words: str, attributes: str) -> str:
    """A text element. The words are escaped; the attributes are SVG."""
    return f'<text x="{x:g}" y="{y:g}" {attributes}>{escape(words)}</text>'


def _fitted(text: str, room: float, size: float) -> str:
    """Return as much of the text as there is room for."""
    most = int(room / (size * _WIDE))
    return text if len(text) <= most else text[: most - 1] + "…"
