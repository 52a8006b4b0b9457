"""Against requests that somebody recorded and sends again: a stamp in an ext field, which the signature covers.

    PenstockStamp = <milliseconds since the epoch>-<session, 16 hex digits>-<number in it>-<request code>

A session is one client's calls to one address. The server keeps, for each session, the highest number it has seen
and which of the WINDOW numbers below it; so a number is taken once, in nearly any order, and memory grows with
clients and not with requests. What is older than the window of time is refused by its stamp, so a session that was
quiet for as long can be forgotten. The code in the stamp binds it to what was asked: RocketMQ's signature does not.

Limits: one user has at most 90 percent of the sessions that the others leave, so that none keeps others out. A server
that restarts forgets, so a request may be replayed to it once within the window, and one may be replayed to another
server that has the same users. TLS closes both. RocketMQ's clients send no stamp; whether one is required is an
option. Owned by the event loop; stamps are looked at only after the signature.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

from penstock.errors import RequestError
from penstock.protocol.codes import ResponseCode
from penstock.runtime import Clock, Entropy
from penstock.runtime.shares import has_share

STAMP_FIELD = "PenstockStamp"
WINDOW = 8_192
_SESSION_SIZE = 16
_STAMP_MAX = 80
_ROUND_MS = 1_000


class Stamps:
    """The stamps of one client."""

    def __init__(self, clock: Clock, entropy: Entropy) -> None:
        self._clock = clock
        self._entropy = entropy
        self._sessions: dict[str, tuple[str, itertools.count[int]]] = {}

    def next(self, address: str, code: int) -> str:
        """For a request to an address."""
        found = self._sessions.get(address)
        if found is None:
            session = self._entropy.bytes(_SESSION_SIZE // 2).hex()
            found = self._sessions[address] = (session, itertools.count(1))
        return f"{self._clock.now_ms()}-{found[0]}-{next(found[1])}-{int(code)}"


@dataclass(slots=True)
class _Session:
    highest: int
    # Bit n: the number `highest - n` was seen.
    seen: int
    newest_ms: int


class SeenStamps:
    """What a server has seen of its clients' stamps."""

    def __init__(self, clock: Clock, window_ms: int, sessions_max: int) -> None:
        self._clock = clock
        self._window_ms = window_ms
        self._sessions_max = sessions_max
        self._sessions: dict[tuple[str, str], _Session] = {}
        self._of_user: Counter[str] = Counter()
        # Before this time forgetting old sessions again is in vain.
        self._next_round_ms = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def check(self, user: str, stamp: str, code: int) -> None:
        """Take a stamp; RequestError if it is old, used, or another request's."""
        time_ms, session, number, stamped_code = _parse(stamp)
        if stamped_code != code:
            raise _refused("the stamp was made for another request code")
        now_ms = self._clock.now_ms()
        if abs(now_ms - time_ms) > self._window_ms:
            raise _refused(
                f"its stamp is {abs(now_ms - time_ms) // 1000} s away from this server's clock",
                "set the clocks right",
            )
        known = self._sessions.get((user, session))
        if known is None:
            if not self._has_room(user):
                self._make_room(now_ms)
            if not self._has_room(user):
                raise RequestError(
                    ResponseCode.SYSTEM_BUSY,
                    f"{len(self._sessions)} clients sign with stamps already, {self._of_user[user]} of them "
                    "as this user",
                    "try again in some minutes, or raise access.sessions_max",
                )
            self._sessions[user, session] = _Session(number, 1, time_ms)
            self._of_user[user] += 1
            return
        if number > known.highest:
            shift = number - known.highest
            known.seen = 1 if shift >= WINDOW else (known.seen << shift | 1) & (1 << WINDOW) - 1
            known.highest = number
        else:
            behind = known.highest - number
            if behind >= WINDOW or known.seen >> behind & 1:
                raise _refused("it was received before")
            known.seen |= 1 << behind
        known.newest_ms = max(known.newest_ms, time_ms)

    def _has_room(self, user: str) -> bool:
        """Whether a user may open one more session: each leaves a part of the room to others."""
        return has_share(self._of_user[user], len(self._sessions), self._sessions_max)

    def _make_room(self, now_ms: int) -> None:
        """Forget sessions whose stamps are all too old to be taken again."""
        since_ms = self._clock.monotonic_ms()
        if since_ms < self._next_round_ms:
            return
        self._next_round_ms = since_ms + _ROUND_MS
        horizon_ms = now_ms - self._window_ms
        self._sessions = {key: one for key, one in self._sessions.items() if one.newest_ms >= horizon_ms}
        self._of_user = Counter(user for user, _ in self._sessions)


def _parse(stamp: str) -> tuple[int, str, int, int]:
    parts = stamp.split("-") if len(stamp) <= _STAMP_MAX and stamp.isascii() else []
    if len(parts) == 4 and len(parts[1]) == _SESSION_SIZE and parts[1].isalnum():
        time, session, number, code = parts
        if all(part.isdigit() and len(part) <= 18 for part in (time, number, code)):
            return int(time), session, int(number), int(code)
    raise _refused("its stamp cannot be read")


def _refused(why: str, hint: str = "send it anew instead of repeating it") -> RequestError:
    return RequestError(ResponseCode.NO_PERMISSION, f"refused: {why}", hint)
