"""Charts as inline SVG: no script, no font, no file beside them. They print as they are."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from kvitals.app.escaping import html
from kvitals.diagnoser.review.efficiency import NAMES as NAMES
from kvitals.diagnoser.review.words import count, share

WIDTH, HEIGHT = 760, 190
LEFT, RIGHT, TOP, BOTTOM = 62, 8, 10, 24
MOST_BARS = 400
DAY = 86400.0
COLOURS = {
    "decode": "#2f6fb2",
    "prefill": "#86b4dd",
    "reprefill": "#d98a2b",
    "drafts": "#e3b878",
    "aborted": "#b5502f",
    "unattributed": "#b9bcc2",
    "idle": "#e6e8eb",
}
LINE, MISSED, FAINT = "#2f6fb2", "#b5502f", "#d9dce0"
_ROUND = (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10)


def stacked_bars(ends: Sequence[float], step: float, parts: Mapping[str, Sequence[float]]) -> str:
    """GPU-hours of each step by part, one bar a step."""
    names = [name for name in COLOURS if any(parts.get(name, ()))]
    width = max(math.ceil(len(ends) / MOST_BARS), 1)
    rows = {name: [sum(parts[name][i : i + width]) for i in range(0, len(ends), width)] for name in names}
    count_ = math.ceil(len(ends) / width)
    totals = [sum(rows[name][i] for name in names) for i in range(count_)]
    top = _round_up(max(totals, default=0.0))
    span = _Span(ends[0] - step, ends[-1])
    bar = (WIDTH - LEFT - RIGHT) / max(count_, 1)
    marks = []
    for i in range(count_):
        below = 0.0
        for name in names:
            value = rows[name][i]
            if value > 0:
                y, high = _y(below + value, top), _y(below, top) - _y(below + value, top)
                x = LEFT + i * bar
                marks.append(
                    f'<rect x="{x:.1f}" y="{y:.1f}" width="{bar + 0.15:.2f}" height="{high:.2f}"'
                    f' fill="{COLOURS[name]}"/>'
                )
                below += value
    return _framed(marks, span, top, count, "GPU-hours per step by use") + _legend(
        [(COLOURS[name], NAMES[name]) for name in names]
    )


def course(ends: Sequence[float], step: float, values: Sequence[float | None], title: str) -> str:
    """One value a step; where nothing was seen the line ends."""
    top = _round_up(max((one for one in values if one is not None), default=0.0))
    return _line(ends, step, values, top, count, title, LINE)


def within(ends: Sequence[float], step: float, values: Sequence[float | None]) -> str:
    """Shares of a step that were within the objective."""
    return _line(ends, step, values, 1.0, share, "First tokens within the objective", MISSED)


def change(before: float, after: float, factors: Sequence[tuple[str, float]]) -> str:
    """From one week's rate to another's, a bar for each factor."""
    bars = [("then", before, 0.0, before)]
    at = before
    for name, value in factors:
        bars.append((name, value, at, at + value))
        at += value
    bars.append(("now", after, 0.0, after))
    top = _round_up(max(max(a, b) for _, _, a, b in bars))
    height, left = 24, 300
    marks = []
    for i, (name, value, a, b) in enumerate(bars):
        x1, x2 = (left + (WIDTH - left - 90) * max(one, 0.0) / top for one in (min(a, b), max(a, b)))
        whole = i in (0, len(bars) - 1)
        colour = "#6b7280" if whole else LINE if value > 0 else MISSED
        said = count(value) if whole else f"{'+' if value > 0 else ''}{count(value)}"
        y = 4 + i * height
        marks.append(
            f'<text x="{left - 10}" y="{y + 14}" text-anchor="end" class="t">{html.text(name)}</text>'
            f'<rect x="{x1:.1f}" y="{y + 3}" width="{max(x2 - x1, 1):.1f}" height="{height - 9}" fill="{colour}"/>'
            f'<text x="{x2 + 6:.1f}" y="{y + 14}" class="t">{html.text(said)}</text>'
        )
    return _svg(WIDTH, len(bars) * height + 6, "".join(marks), "Parts of the change")


class _Span:
    """The time that a chart shows, across its width."""

    def __init__(self, start: float, end: float) -> None:
        self.start, self.end = start, max(end, start + 1.0)

    def x(self, t: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (t - self.start) / (self.end - self.start)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Days where there are several, else hours, minutes or seconds."""
        seconds = self.end - self.start
        usual = (5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 10800.0, DAY)
        every = next((one for one in usual if seconds / one <= 10), DAY * math.ceil(seconds / DAY / 10))
        form = "%a %d" if every >= DAY else "%H:%M" if every >= 60 else "%H:%M:%S"
        t = math.ceil(self.start / every) * every
        while t < self.end:
            yield t, time.strftime(form, time.gmtime(t))
            t += every


def _line(
    ends: Sequence[float], step: float, values: Sequence[float | None], top: float, said: Callable[[float], str],
    title: str, colour: str,
) -> str:  # fmt: skip
    span = _Span(ends[0] - step, ends[-1])
    paths: list[list[tuple[float, float]]] = []
    points: list[tuple[float, float]] = []
    for end, value in zip(ends, values, strict=True):
        if value is None:
            paths.append(points)
            points = []
        else:
            points.append((span.x(end - step / 2), _y(value, top)))
    paths.append(points)
    marks = []
    for path in paths:
        if len(path) == 1:
            marks.append(f'<circle cx="{path[0][0]:.1f}" cy="{path[0][1]:.1f}" r="1.6" fill="{colour}"/>')
        elif path:
            way = " ".join(f"{x:.1f},{y:.1f}" for x, y in path)
            marks.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
    return _framed(marks, span, top, said, title)


def _framed(marks: Sequence[str], span: _Span, top: float, said: Callable[[float], str], title: str) -> str:
    lines = []
    for i in range(5):
        value = top * i / 4
        y = _y(value, top)
        lines.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{FAINT}" stroke-width="0.7"/>'
            f'<text x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end" class="a">{html.text(said(value))}</text>'
        )
    ticks = list(span.ticks())
    for (t, text), follows in zip(ticks, [*(one for one, _ in ticks[1:]), span.end][: len(ticks)], strict=True):
        x = span.x(t)
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM + 4}" stroke="{FAINT}"/>')
        if span.x(follows) - x > 34:
            lines.append(f'<text x="{x + 4:.1f}" y="{HEIGHT - 8}" class="a">{html.text(text)}</text>')
    return _svg(WIDTH, HEIGHT, "".join([*lines, *marks]), title)


def _svg(width: float, height: float, inside: str, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{html.text(title)}">'
        f"<title>{html.text(title)}</title>{inside}</svg>"
    )


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    boxes = "".join(f'<span><i style="background:{colour}"></i>{html.text(name)}</span>' for colour, name in entries)
    return f'<p class="legend">{boxes}</p>'


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / top if top > 0 else float(HEIGHT - BOTTOM)


def _round_up(value: float) -> float:
    """The next round number, of which quarters are round as well."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in _ROUND if step * power >= value * 0.9999), 10 * power)
