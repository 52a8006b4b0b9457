"""Plots as inline SVG, drawn here so that a report needs no script and nothing from elsewhere.

    line_chart      values over time, one line per series; a series that has no value somewhere is interrupted there
    stack_chart     bars over time, the parts of a bar on top of each other
    bar_list        one labelled bar per row
    histogram       bars of equal width with labels below

Rules: colours are the page's (classes s0, s1, ...), so light and dark both work; every shape has its numbers as a
title, which browsers show under the pointer; all text is escaped. Pure functions: data in, text out.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

WIDTH = 900
HEIGHT = 240
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 12, 30
COLOURS = 8
_TIME_STEPS = (
    1,
    5,
    10,
    30,
    60,
    300,
    600,
    1_800,
    3_600,
    10_800,
    21_600,
    43_200,
    86_400,
    7 * 86_400,
    30 * 86_400,
)

Number = Callable[[float], str]


class Point(NamedTuple):
    """A moment in seconds since the epoch and its value."""

    time_s: float
    value: float | None


Series = Mapping[str, Sequence[Point]]


def shown(text: object, limit: int = 120) -> str:
    """Text for a page: escaped, in one line, with everything invisible or turning made visible."""
    plain = "" if text is None else str(text)
    safe = "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in plain
    )
    return html.escape(safe if len(safe) <= limit else safe[: limit - 1] + "…")


def number_text(value: float) -> str:
    """`950`, `1.2k`, `3.4M`."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def ticks(top: float, count: int = 4) -> list[float]:
    """Round values from 0 to at least `top`."""
    if not top > 0:
        return [0.0, 1.0]
    raw = top / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    return [step * i for i in range(math.ceil(top / step * 0.999) + 1)]


def time_ticks(first_s: float, last_s: float, most: int = 7) -> list[tuple[float, str]]:
    """Moments on round times with their labels; a date is written where the day changes."""
    span = max(last_s - first_s, 1)
    step = next((size for size in _TIME_STEPS if span / size <= most), span / most)
    found = []
    day = ""
    moment = math.ceil(first_s / step) * step
    while moment <= last_s:
        time = datetime.fromtimestamp(moment, UTC)
        label = f"{time:%H:%M:%S}" if step < 60 else f"{time:%H:%M}" if step < 86_400 else ""
        if (today := f"{time:%m-%d}") != day:
            label = f"{today} {label}".strip()
            day = today
        found.append((moment, label))
        moment += step
    return found


class _Frame:
    """The axes of a chart over time, and where a value lies in it."""

    def __init__(self, first_s: float, last_s: float, top: float, text: Number) -> None:
        self.first_s, self.span = first_s, max(last_s - first_s, 1e-9)
        self.marks = ticks(top)
        self.top = self.marks[-1]
        self._text = text
        self._times = time_ticks(first_s, last_s)

    def x(self, time_s: float) -> float:
        return LEFT + (time_s - self.first_s) / self.span * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / self.top * (HEIGHT - TOP - BOTTOM)

    def axes(self) -> list[str]:
        parts = []
        for value in self.marks:
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(_mark(y, self._text(value)))
        for moment, label in self._times:
            x = self.x(moment)
            parts.append(
                f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM + 4}"/>'
            )
            anchor = "start" if x < LEFT + 30 else "end" if x > WIDTH - RIGHT - 30 else "middle"
            parts.append(
                f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="{anchor}">{label}</text>'
            )
        return parts


def _mark(y: float, text: str) -> str:
    """A value at the left of the plot."""
    return f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{shown(text)}</text>'


def _svg(title: str, parts: Sequence[str], height: float = HEIGHT) -> str:
    body = "".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{shown(title)}" '
        f'xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )


def legend(names: Sequence[str]) -> str:
    """What the colours mean."""
    items = "".join(
        f'<span class="item"><i class="k{i % COLOURS}"></i>{shown(name, 60)}</span>'
        for i, name in enumerate(names)
    )
    return f'<p class="legend">{items}</p>'


def line_chart(title: str, series: Series, *, text: Number = number_text, width_s: float = 0) -> str:
    """Lines over time with a legend; empty without values."""
    values = [point.value for points in series.values() for point in points if point.value is not None]
    times = [point.time_s for points in series.values() for point in points]
    if not values:
        return ""
    frame = _Frame(min(times), max(*times, min(times) + width_s), max(*values, 0), text)
    parts = frame.axes()
    for i, (name, points) in enumerate(series.items()):
        for run in _runs(points):
            parts.append(_line(frame, run, i % COLOURS))
            parts += [_dot(frame, point, name, i % COLOURS, text, alone=len(run) == 1) for point in run]
    return _svg(title, parts) + (legend(list(series)) if len(series) > 1 else "")


def _runs(points: Sequence[Point]) -> list[list[Point]]:
    """Neighbouring points that have values."""
    runs: list[list[Point]] = [[]]
    for point in points:
        if point.value is None:
            runs.append([])
        else:
            runs[-1].append(point)
    return [run for run in runs if run]


def _line(frame: _Frame, run: Sequence[Point], colour: int) -> str:
    if len(run) < 2:
        return ""
    places = " ".join(f"{frame.x(p.time_s):.1f},{frame.y(p.value or 0):.1f}" for p in run)
    return f'<polyline class="s{colour}" points="{places}"/>'


def _dot(frame: _Frame, point: Point, name: str, colour: int, text: Number, *, alone: bool) -> str:
    size = 3 if alone else 2
    return (
        f'<circle class="f{colour}" cx="{frame.x(point.time_s):.1f}" cy="{frame.y(point.value or 0):.1f}" r="{size}">'
        f"<title>{shown(name)}, {moment_text(point.time_s)}: {shown(text(point.value or 0))}</title></circle>"
    )


def stack_chart(title: str, parts_by_name: Series, *, width_s: float, text: Number = number_text) -> str:
    """Bars over time. All series have the same moments; a bar is the sum of its parts."""
    series = {name: points for name, points in parts_by_name.items() if points}
    if not series:
        return ""
    moments = [point.time_s for point in next(iter(series.values()))]
    sums = [sum(points[i].value or 0 for points in series.values()) for i in range(len(moments))]
    frame = _Frame(min(moments), max(moments) + width_s, max(*sums, 0) if len(sums) > 1 else sums[0], text)
    shapes = frame.axes()
    for i, moment in enumerate(moments):
        low = 0.0
        left, right = frame.x(moment), frame.x(moment + width_s)
        for j, (name, points) in enumerate(series.items()):
            value = points[i].value or 0
            if value <= 0:
                continue
            top, bottom = frame.y(low + value), frame.y(low)
            shapes.append(
                f'<rect class="f{j % COLOURS}" x="{left + 0.5:.1f}" y="{top:.1f}" '
                f'width="{max(right - left - 1, 0.5):.1f}" height="{max(bottom - top, 0.5):.1f}">'
                f"<title>{shown(name)}, {moment_text(moment)}: {shown(text(value))}</title></rect>"
            )
            low += value
    return _svg(title, shapes) + legend(list(series))


def histogram(
    title: str, bars: Sequence[tuple[str, float]], *, text: Number = number_text, colour: int = 0
) -> str:
    """Bars of equal width; the labels stand below."""
    if not bars:
        return ""
    marks = ticks(max(value for _, value in bars))
    top, step = marks[-1], (WIDTH - LEFT - RIGHT) / len(bars)
    every = math.ceil(len(bars) / 16)
    parts = []
    for value in marks:
        y = HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_mark(y, text(value)))
    for i, (label, value) in enumerate(bars):
        height = value / top * (HEIGHT - TOP - BOTTOM)
        x = LEFT + i * step
        parts.append(
            f'<rect class="f{colour}" x="{x + 1:.1f}" y="{HEIGHT - BOTTOM - height:.1f}" '
            f'width="{max(step - 2, 1):.1f}" height="{height:.1f}">'
            f"<title>{shown(label)}: {shown(text(value))}</title></rect>"
        )
        if i % every == 0:
            parts.append(
                f'<text class="tick" x="{x + step / 2:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
                f"{shown(label)}</text>"
            )
    return _svg(title, parts)


def bar_list(title: str, bars: Sequence[tuple[str, float, str]], *, colour: int = 0) -> str:
    """One bar per row: label, value, and the text beside it."""
    if not bars:
        return ""
    label_width, row, most = 230, 24, max(value for _, value, _ in bars)
    room = WIDTH - label_width - 170
    parts = []
    for i, (label, value, beside) in enumerate(bars):
        y = i * row + 4
        width = max(value / most * room if most > 0 else 0, 1)
        parts.append(
            f'<text class="label" x="{label_width - 10}" y="{y + 14}" text-anchor="end">{shown(label, 34)}</text>'
            f'<rect class="f{colour}" x="{label_width}" y="{y}" width="{width:.1f}" height="{row - 7}">'
            f"<title>{shown(label)}: {shown(beside)}</title></rect>"
            f'<text class="tick" x="{label_width + width + 8:.1f}" y="{y + 14}">{shown(beside)}</text>'
        )
    return _svg(title, parts, len(bars) * row + 8)


def moment_text(time_s: float) -> str:
    """`2025-01-31 15:00:00`, UTC."""
    return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M:%S}"
