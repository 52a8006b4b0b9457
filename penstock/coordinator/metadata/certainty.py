"""Until when our session certainly lives: the clock that leaders and owners go by.

The servers end a session that they have not heard of for its timeout. They hear of us later than we send, so it
lives at least for that long from the *sending* of something that reached them. Two cautions:

1. Only answered *changes* count. A follower answers reads and pings by itself, and goes on doing so while it is cut
   off from its leader, which counts the timeout and will end the session. A change is answered by a majority.
2. A third of the timeout is kept back. A follower tells the leader of its sessions every half tick, so the leader
   may count from half a tick before; a session is never shorter than two ticks, hence this is at most a quarter
   of it. The rest of the margin is for clocks that run at different speeds.

So: `until_ms = sent_ms + timeout * 2 / 3`, of the last change that was answered. Plain data; no clock of its own.
"""

from __future__ import annotations


class Certainty:
    """What is known of one session after another."""

    def __init__(self) -> None:
        self._until_ms = 0

    @property
    def until_ms(self) -> int:
        return self._until_ms

    def answered(self, sent_ms: int, timeout_ms: int) -> None:
        """A change sent at that time was answered."""
        self._until_ms = max(self._until_ms, sent_ms + timeout_ms * 2 // 3)

    def lost(self) -> None:
        """The session is over; nothing is certain of the next one yet."""
        self._until_ms = 0


def beat_interval_ms(timeout_ms: int) -> int:
    """How often a change is sent for the sake of certainty alone: four times in what one beat proves."""
    return max(1, timeout_ms // 6)
