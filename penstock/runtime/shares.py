"""Room that many use: none of them uses it up.

Rule: of the room that all others leave, one may have at most 90 percent, so that there is always some for another.
Pure function.
"""

from __future__ import annotations

SHARE_PERCENT = 90


def has_share(own: int, known: int, most: int) -> bool:
    """Whether one who has `own` of `known` entries may have one more, where there may be `most`."""
    return known < most and own * 100 < (most - (known - own)) * SHARE_PERCENT
