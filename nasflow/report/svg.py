"""A small line chart as SVG text: for pages that show a picture but run no script, without a browser to draw it."""

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 640, 300, 64, 24, 90, 36
_COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")


def curves_svg(lines: Mapping[int, Sequence[tuple[int, float | None]]], title: str) -> str:
    """One line for each trial number; None leaves a gap. There is at least one finite value."""
    values = [value for line in lines.values() for _, value in line if value is not None]
    epochs = [epoch for line in lines.values() for epoch, _ in line]
    low, high, first, last = min(values), max(values), min(epochs), max(epochs)

    def place(epoch: int, value: float) -> str:
        across = (epoch - first) / (last - first or 1)
        up = (value - low) / (high - low or 1)
        x = _LEFT + across * (_WIDTH - _LEFT - _RIGHT)
        return f"{x:.1f},{_HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM):.1f}"

    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
        ' font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>',
        f'<path d="M{_LEFT},{_TOP}V{bottom}H{right}" fill="none" stroke="#888"/>',
        _label(_LEFT - 6, _TOP + 4, f"{high:.4g}", "end"),
        _label(_LEFT - 6, bottom, f"{low:.4g}", "end"),
        _label(_LEFT, bottom + 16, str(first), "middle"),
        _label(right, bottom + 16, f"epoch {last}", "middle"),
        _label(_LEFT, _TOP - 8, title, "start"),
    ]
    for index, (number, line) in enumerate(lines.items()):
        color = _COLORS[index % len(_COLORS)]
        path, pen_down = "", False
        for epoch, value in line:
            if value is not None:
                path += f"L{place(epoch, value)}" if pen_down else f"M{place(epoch, value)}h0"  # h0 dots a lone epoch
            pen_down = value is not None
        parts.append(f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.5" stroke-linecap="round"/>')
        parts.append(_label(right + 8, _TOP + 14 * index + 8, f"trial {number}", "start", color))
    return "".join([*parts, "</svg>"])


def _label(x: int, y: int, text: str, anchor: str, color: str = "#333") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{color}">{escape(text)}</text>'
