"""How wide the time windows of an audit are, if nobody says so: round widths, and not too many windows.

Plain code, no Spark.
"""

from __future__ import annotations

WINDOWS_MAX = 60
# Seconds that people count in.
_WIDTHS = (1, 5, 10, 30, 60, 300, 900, 1_800, 3_600, 10_800, 21_600, 43_200, 86_400, 7 * 86_400)


def choose_width(first_ms: int | None, last_ms: int | None) -> int:
    """The narrowest width of which at most WINDOWS_MAX cover the time between."""
    span = 0 if first_ms is None or last_ms is None else max(0, last_ms - first_ms) / 1000
    return next((width for width in _WIDTHS if span / width <= WINDOWS_MAX - 1), _whole_weeks(span))


def _whole_weeks(span: float) -> int:
    week = _WIDTHS[-1]
    return week * -(-int(span) // (week * (WINDOWS_MAX - 1)))
