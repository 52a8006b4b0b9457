"""Positions: where a read begins and ends, as users write them, and as Spark's checkpoints keep them.

    earliest    latest    timestamp:2026-05-01T12:00:00Z    timestamp:1777636800000
    {"orders/broker-a/0": 1200, "orders/broker-a/1": "latest"}          next offset per queue
    {"orders/broker-a/0": 1200, "*": "latest"}                          and a word for all other queues

Rules: a time means the first message stored then or later; one without a zone is UTC. A queue that JSON does not
name is read from its beginning, or to its end, unless `*` says otherwise. Offsets for Spark always have their keys
in sorted order: Spark compares them as text, and another order would be another place. Pure functions; the driver
uses them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from penstock.client.scan_results import OffsetRange, QueueId
from penstock.errors import OptionError

_FORMS = 'use earliest, latest, timestamp:<ISO or milliseconds>, or JSON as {"topic/broker/0": 12}'
_WORDS = {"earliest", "latest"}
TIME_PREFIX = "timestamp:"
# Stands for the queues that JSON does not name.
OTHERS = "*"
OFFSET_MAX = (1 << 63) - 1
Offsets = dict[str, int]
# Stands before the keys of queues in the offsets of a stream's first micro-batch: where that began. No topic has it.
BEGAN = "^"


class PositionKind(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    TIME = "timestamp"
    OFFSETS = "offsets"


@dataclass(frozen=True, slots=True)
class Position:
    """A place in all queues. `offsets` are pairs, so that options stay values: (queue key, offset or word)."""

    kind: PositionKind
    time_ms: int = 0
    offsets: tuple[tuple[str, int | str], ...] = ()

    @staticmethod
    def parse(name: str, text: str) -> Position:
        """From an option's text."""
        text = text.strip()
        lower = text.lower()
        if lower in _WORDS:
            return Position(PositionKind(lower))
        if lower.startswith(TIME_PREFIX):
            return Position(PositionKind.TIME, time_ms=parse_time(name, text[len(TIME_PREFIX) :].strip()))
        if text.startswith("{"):
            return Position(PositionKind.OFFSETS, offsets=_parse_json(name, text))
        raise OptionError(f"{name} is {text[:80]!r}", _FORMS)

    def __str__(self) -> str:
        if self.kind is PositionKind.TIME:
            return f"timestamp:{datetime.fromtimestamp(self.time_ms / 1000, UTC).isoformat()}"
        return json.dumps(dict(self.offsets)) if self.kind is PositionKind.OFFSETS else self.kind.value


EARLIEST = Position(PositionKind.EARLIEST)
LATEST = Position(PositionKind.LATEST)


def parse_time(name: str, text: str) -> int:
    """Milliseconds since the epoch, from ISO 8601 or from such a number."""
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(
            f"{name} has the time {text[:40]!r}",
            "write 2026-05-01T12:00:00Z, or milliseconds since 1970",
        ) from None
    return int((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp() * 1000)


def _parse_json(name: str, text: str) -> tuple[tuple[str, int | str], ...]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{name} is no JSON: {error}", _FORMS) from None
    pairs: list[tuple[str, int | str]] = []
    for key, value in found.items():
        word = value.lower() if isinstance(value, str) else ""
        if key == OTHERS:
            if word not in _WORDS:
                raise OptionError(f"{name} has {value!r} for {OTHERS}", "give earliest or latest")
            pairs.append((key, word))
            continue
        try:
            queue = QueueId.of_key(key)
        except OptionError as error:
            raise OptionError(f"{name}: {error.message}", error.hint) from None
        if word in _WORDS:
            pairs.append((queue.key, word))
        elif isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= OFFSET_MAX:
            pairs.append((queue.key, value))
        else:
            raise OptionError(
                f"{name} has {value!r} for {queue.key}",
                "give the next offset, a number from 0 on, or earliest, latest",
            )
    return tuple(sorted(pairs))


# -- offsets -----------------------------------------------------------------------------------------------------


def with_beginning(end: Mapping[str, int], start: Mapping[str, int]) -> Offsets:
    """The end of a first micro-batch, and where it began. Spark keeps ends only and asks for the beginning again when
    that batch has to be run once more; by then `latest`, and after retention `earliest`, are other places."""
    return sorted_offsets({**end, **{BEGAN + key: offset for key, offset in start.items()}})


def split_beginning(offsets: Mapping[str, int]) -> tuple[Offsets, Offsets]:
    """The offsets themselves, and where their micro-batch began if they say so."""
    own = {key: offset for key, offset in offsets.items() if not key.startswith(BEGAN)}
    began = {key[len(BEGAN) :]: offset for key, offset in offsets.items() if key.startswith(BEGAN)}
    return own, began


def sorted_offsets(offsets: Mapping[str, int]) -> Offsets:
    """As Spark must get them."""
    return dict(sorted(offsets.items()))


def resolve(
    position: Position,
    name: str,
    ranges: Mapping[QueueId, OffsetRange],
    by_time: Callable[[Mapping[QueueId, int]], Mapping[QueueId, int]],
) -> dict[QueueId, int]:
    """The offset of a position in each queue. `name` is the option, for messages; queues that JSON leaves out get
    what it has for `*`, or the end that belongs to the option."""
    if position.kind is PositionKind.EARLIEST:
        return {queue: item.min for queue, item in ranges.items()}
    if position.kind is PositionKind.LATEST:
        return {queue: item.max for queue, item in ranges.items()}
    if position.kind is PositionKind.TIME:
        return dict(by_time(dict.fromkeys(ranges, position.time_ms)))
    given = dict(position.offsets)
    unnamed = given.pop(OTHERS, "latest" if name == "endingPosition" else "earliest")
    known = {queue.key for queue in ranges}
    if strange := sorted(set(given) - known):
        raise OptionError(
            f"{name} names queues that are not read: {', '.join(strange[:5])}",
            f"queues are: {_some(sorted(known))}",
        )
    found = {}
    for queue, item in ranges.items():
        value = given.get(queue.key, unnamed)
        found[queue] = value if isinstance(value, int) else item.min if value == "earliest" else item.max
    return found


def check_order(
    starting: Position, ending: Position, starts: Mapping[QueueId, int], ends: Mapping[QueueId, int]
) -> None:
    """Refuse a batch read that begins after its end."""
    kinds = (starting.kind, ending.kind)
    if kinds == (PositionKind.TIME, PositionKind.TIME) and starting.time_ms > ending.time_ms:
        raise _backwards(f"{starting} is after {ending}")
    if kinds == (PositionKind.LATEST, PositionKind.EARLIEST):
        raise _backwards("latest is after earliest")
    if PositionKind.OFFSETS in kinds:
        for queue, start in starts.items():
            if start > ends[queue]:
                raise _backwards(f"{queue} begins at {start} and ends at {ends[queue]}")


def check_ends(ending: Position, ends: Mapping[QueueId, int], ranges: Mapping[QueueId, OffsetRange]) -> None:
    """Refuse ends that no message has reached: what is not there cannot be read."""
    if ending.kind is not PositionKind.OFFSETS:
        return
    for queue, end in ends.items():
        if end > ranges[queue].max:
            raise OptionError(
                f"endingPosition of {queue} is {end}, and the queue ends at {ranges[queue].max}",
                "use latest, or an offset that is there",
            )


def _backwards(what: str) -> OptionError:
    return OptionError(f"startingPosition is after endingPosition: {what}", "swap them, or leave one out")


def _some(names: Iterable[str], most: int = 10) -> str:
    listed = list(names)
    return (
        ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "") or "none"
    )
