"""Small charts as SVG text, for pages that show pictures but run no scripts."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 640, 300, 64, 24, 90, 36
_COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")
_GRAY = "#bbbbbb"

Point = tuple[float, float]


@dataclass(frozen=True)
class _Frame:
    """The axes of a picture: `low` to `high` from bottom to top, `first` to `last` from left to right."""

    first: float
    last: float
    low: float
    high: float

    def place(self, across: float, up: float) -> tuple[float, float]:
        x = (across - self.first) / (self.last - self.first or 1)
        y = (up - self.low) / (self.high - self.low or 1)
        return _LEFT + x * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - y * (_HEIGHT - _TOP - _BOTTOM)

    def drawn(self, title: str, first: str, last: str) -> list[str]:
        """Draw the axes. `first` and `last` label the ends of the horizontal one."""
        right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        return [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
            f'height="{_HEIGHT}" font-family="sans-serif" font-size="11">'
            '<rect width="100%" height="100%" fill="white"/>',
            f'<path d="M{_LEFT},{_TOP}V{bottom}H{right}" fill="none" stroke="#888"/>',
            _label(_LEFT - 6, _TOP + 4, f"{self.high:.4g}", "end"),
            _label(_LEFT - 6, bottom, f"{self.low:.4g}", "end"),
            _label(_LEFT, bottom + 16, first, "middle"),
            _label(right, bottom + 16, last, "middle"),
            _label(_LEFT, _TOP - 8, title, "start"),
        ]


def curves_svg(lines: Mapping[int, Sequence[tuple[int, float | None]]], title: str) -> str:
    """Draw one line for each trial number. None leaves a gap; at least one value must be finite."""
    values = [value for line in lines.values() for _, value in line if value is not None]
    epochs = [epoch for line in lines.values() for epoch, _ in line]
    frame = _Frame(min(epochs), max(epochs), min(values), max(values))
    parts = frame.drawn(title, str(min(epochs)), f"epoch {max(epochs)}")
    for index, (number, line) in enumerate(lines.items()):
        color = _COLORS[index % len(_COLORS)]
        path, pen_down = "", False
        for epoch, value in line:
            if value is not None:
                x, y = frame.place(epoch, value)
                path += f"L{x:.1f},{y:.1f}" if pen_down else f"M{x:.1f},{y:.1f}h0"  # h0 dots a lone epoch
            pen_down = value is not None
        parts.append(f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.5" stroke-linecap="round"/>')
        parts.append(_label(_WIDTH - _RIGHT + 8, _TOP + 14 * index + 8, f"trial {number}", "start", color))
    return "".join([*parts, "</svg>"])


def front_svg(points: Iterable[Point], front: Mapping[int, Point], title: str, across: str) -> str:
    """Draw points `(x, y)` and a Pareto front.

    Args:
        points: the points that are not on the front.
        front: the points of the front by trial number, at least one.
        title: label of the vertical axis.
        across: label of the horizontal axis.
    """
    points = list(points)
    xs, ys = zip(*points, *front.values(), strict=True)
    frame = _Frame(min(xs), max(xs), min(ys), max(ys))
    parts = frame.drawn(title, f"{frame.first:.4g}", f"{across} {frame.last:.4g}")
    for point in points:
        x, y = frame.place(*point)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{_GRAY}"/>')
    for number, point in sorted(front.items(), key=lambda item: item[1]):
        x, y = frame.place(*point)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{_COLORS[3]}"/>')
        parts.append(_label(x + 6, y - 5, str(number), "start", _COLORS[3]))
    return "".join([*parts, "</svg>"])


def markdown_picture(svg: str, words: str) -> str:
    """Return a picture for a Markdown text; `words` is its alternative text."""
    return f"![{words}](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


def _label(x: float, y: float, text: str, anchor: str, color: str = "#333") -> str:
    """A text element; the text is escaped."""
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{color}">{escape(text)}</text>'
