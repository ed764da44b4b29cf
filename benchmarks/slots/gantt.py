"""Draws what the slots of a cluster did."""

from collections.abc import Mapping, Sequence

from benchmarks.slots.cluster import Bar

_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#b07aa1")
_WIDTH, _HEIGHT, _MARGIN, _TITLE = 900, 200, 8, 18


def draw(found: Mapping[str, Sequence[Bar]], slots: int) -> str:
    """Return an SVG with a panel for each search, by its name: a row each slot, a colour each round."""
    begin = {name: min(bar.begin for bar in bars) for name, bars in found.items()}
    longest = max(max(bar.end for bar in bars) - begin[name] for name, bars in found.items())
    scale, row = (_WIDTH - 2 * _MARGIN) / longest, _HEIGHT / slots
    high = len(found) * (_HEIGHT + _TITLE + _MARGIN)
    text = 'font-family="sans-serif" font-size="12"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {high}" {text}>',
        f'<rect width="{_WIDTH}" height="{high}" fill="white"/>',
    ]
    for place, (name, bars) in enumerate(found.items()):
        top = place * (_HEIGHT + _TITLE + _MARGIN) + _TITLE
        seconds = max(bar.end for bar in bars) - begin[name]
        lines += [
            f'<text x="{_MARGIN}" y="{top - 5}">{name}: {slots} slots, {seconds:.0f} s</text>',
            f'<rect x="{_MARGIN}" y="{top}" width="{_WIDTH - 2 * _MARGIN}" height="{_HEIGHT}" fill="#eee"/>',
        ]
        for number in sorted({bar.round for bar in bars}):
            path = "".join(
                f"M{_MARGIN + scale * (bar.begin - begin[name]):.1f} {top + row * bar.slot:.1f}"
                f"h{scale * (bar.end - bar.begin):.1f}v{row:.1f}h{-scale * (bar.end - bar.begin):.1f}z"
                for bar in bars
                if bar.round == number
            )
            colour = _COLOURS[number % len(_COLOURS)]
            lines.append(f'<path d="{path}" fill="{colour}" stroke="white" stroke-width="0.3"/>')
    return "\n".join([*lines, "</svg>", ""])
