"""Line charts as SVG text, from rows of gold. It needs no library, and reads no table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 80, 160, 40, 40
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf")
TICKS = 4
SHORT_S = 120
"""Up to so many seconds, minutes would say too little on the axis of time."""

Points = Sequence[tuple[datetime, float]]


def line_chart(title: str, unit: str, series: Mapping[str, Points]) -> str:
    """One line a series over time, from zero up. A series of one point is a dot."""
    times = [when.timestamp() for points in series.values() for when, _ in points]
    values = [value for points in series.values() for _, value in points]
    first, last = (min(times), max(times)) if times else (0.0, 0.0)
    top = max([*values, 0.0]) or 1.0
    span = (last - first) or 1.0

    def place(when: datetime, value: float) -> tuple[float, float]:
        x = LEFT + (when.timestamp() - first) / span * (WIDTH - LEFT - RIGHT)
        return x, HEIGHT - BOTTOM - max(value, 0.0) / top * (HEIGHT - TOP - BOTTOM)

    drawn = [_text(LEFT, TOP - 16, f"{title} ({unit})", size=15)]
    for tick in range(TICKS + 1):
        y = HEIGHT - BOTTOM - tick / TICKS * (HEIGHT - TOP - BOTTOM)
        drawn.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        drawn.append(_text(LEFT - 8, y + 4, f"{top * tick / TICKS:,.6g}", anchor="end"))
    for when in {first, last} if times else set():
        label = datetime.fromtimestamp(when).strftime("%Y-%m-%d %H:%M" if span > SHORT_S else "%H:%M:%S.%f")
        drawn.append(_text(LEFT + (when - first) / span * (WIDTH - LEFT - RIGHT), HEIGHT - 14, label, anchor="middle"))
    for number, (name, points) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = [place(*point) for point in sorted(points)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in places]
        drawn.append(_text(WIDTH - RIGHT + 12, TOP + 16 * number + 8, name, fill=colour))
    body = "\n".join(drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _text(x: float, y: float, text: str, *, size: int = 11, anchor: str = "start", fill: str = "#333") -> str:
    style = f'font-size="{size}" text-anchor="{anchor}" fill="{fill}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
