"""Dead letters as values: one of them, which ones are meant, and how many there are of each kind. No I/O.

A dead letter is a message in `%DLQ%<group>`. It is named by its offset id and the time at which it was stored:
a log that was thrown away and begun anew gives the same ids again. `kind` is its reason without what differs from
message to message, so that a thousand failures of one cause are one line.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.client.options import require_range, require_text
from penstock.client.received import DEAD_LETTER_PREFIX, ORIGIN_MESSAGE_ID, RETRY_TOPIC, ReceivedMessage
from penstock.errors import OptionError
from penstock.message.failures import FIRST_FAILED, ORIGIN, REASON, UNPROVEN

USED_UP = "tries used up"
GIVEN_UP = "given up by the consumer"
OTHERS = "(other reasons)"
# Kinds that are counted one by one for a group; what comes after them is counted together.
KINDS_MAX = 200
KIND_CHARS = 120
_INT64_MAX = 2**63 - 1
# Numbers, hex numbers and ids: what differs between failures of one cause.
_PARTICULAR = re.compile(r"\b0x[0-9a-fA-F]+\b|\b[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,})*\b|\d+")


def kind_of(reason: str) -> str:
    """A reason without its particulars."""
    kind = _PARTICULAR.sub("#", reason)
    return kind if len(kind) <= KIND_CHARS else kind[: KIND_CHARS - 4] + " ..."


@dataclass(frozen=True, slots=True)
class RedriveMark:
    """Where a dead letter was sent again, and under which id."""

    topic: str
    msg_id: str
    time_ms: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter. `redriven` says whether it was sent again."""

    group: str
    message: ReceivedMessage
    tries_max: int = 16
    redriven: RedriveMark | None = None

    @property
    def name(self) -> str:
        """What tells it from every other dead letter."""
        return f"{self.message.offset_msg_id}-{self.message.store_timestamp}"

    @property
    def letter_id(self) -> str:
        """The id of the dead letter itself; `message.msg_id` is the one that its producer gave it."""
        return self.message.offset_msg_id

    @property
    def origin_topic(self) -> str:
        properties = self.message.properties
        return properties.get("DLQ_ORIGIN_TOPIC") or properties.get(RETRY_TOPIC) or ""

    @property
    def redrive_topic(self) -> str:
        """Where it is sent again by default: not to a topic that only a client has named who may not
        publish there."""
        return "" if self.message.properties.get(UNPROVEN) else self.origin_topic

    @property
    def origin_id(self) -> str:
        return self.message.properties.get(ORIGIN_MESSAGE_ID, "")

    @property
    def origin(self) -> str:
        """broker/queue/offset of the message as it was sent; empty if nobody noted it."""
        return self.message.properties.get(ORIGIN, "")

    @property
    def reason(self) -> str:
        """Why it failed last; what its tries say if nobody gave a reason."""
        noted = self.message.properties.get(REASON, "")
        return noted or (USED_UP if self.message.tries > self.tries_max else GIVEN_UP)

    @property
    def kind(self) -> str:
        return kind_of(self.reason)

    @property
    def first_failed_ms(self) -> int:
        """When it first failed; 0 if nobody noted it."""
        text = self.message.properties.get(FIRST_FAILED, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0

    @property
    def died_ms(self) -> int:
        """When it became a dead letter."""
        return self.message.store_timestamp


@dataclass(frozen=True, slots=True)
class Selection:
    """Which dead letters of a group are meant: those for which everything that is given holds."""

    # Part of the reason or of its kind, whatever the case of its letters.
    reason: str = ""
    # When it became a dead letter: from, inclusive, and to, exclusive.
    since_ms: int = 0
    until_ms: int = _INT64_MAX
    # One of its keys.
    key: str = ""
    # The topic it was sent to.
    topic: str = ""
    # Ids of either kind: of the dead letter, of its producer, or of the message as it was first stored.
    ids: frozenset[str] = field(default_factory=frozenset)
    # Only those that were sent again, or only those that were not; None: both.
    redriven: bool | None = None
    # Of all that match, so many, always the same ones; 0: all.
    sample: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", frozenset(self.ids))
        for name in ("reason", "key", "topic"):
            require_text(name, getattr(self, name))
        for name, most in (("since_ms", _INT64_MAX), ("until_ms", _INT64_MAX), ("sample", _INT64_MAX)):
            require_range(name, getattr(self, name), 0, most)
        if self.since_ms > self.until_ms:
            raise OptionError("the time from which is after the time until which", "swap them")

    def matches(self, letter: DeadLetter) -> bool:
        message = letter.message
        if not self.since_ms <= letter.died_ms < self.until_ms:
            return False
        if self.ids and self.ids.isdisjoint((letter.letter_id, message.msg_id, letter.origin_id)):
            return False
        if self.topic and letter.origin_topic != self.topic:
            return False
        if self.key and self.key not in message.keys:
            return False
        if self.redriven is not None and self.redriven != (letter.redriven is not None):
            return False
        wanted = self.reason.casefold()
        return not wanted or wanted in letter.reason.casefold() or wanted in letter.kind.casefold()


def sampled(letters: Iterable[DeadLetter], count: int) -> list[DeadLetter]:
    """So many of them, picked by a hash of their names: the same command picks the same ones again."""
    chosen = sorted(letters, key=lambda letter: hashlib.sha256(letter.name.encode()).digest())[:count]
    return sorted(chosen, key=lambda letter: (letter.died_ms, letter.name))


@dataclass(slots=True)
class ReasonCount:
    """Dead letters of one kind."""

    kind: str
    count: int = 0
    redriven: int = 0
    oldest_ms: int = 0
    newest_ms: int = 0
    topics: dict[str, int] = field(default_factory=dict)
    # One to look at: the newest.
    example_id: str = ""
    example: str = ""

    def add(self, letter: DeadLetter) -> None:
        self.count += 1
        self.redriven += letter.redriven is not None
        died_ms = letter.died_ms
        self.oldest_ms = min(self.oldest_ms or died_ms, died_ms)
        if died_ms >= self.newest_ms:
            self.newest_ms, self.example_id, self.example = died_ms, letter.letter_id, letter.reason
        topic = letter.origin_topic
        if topic in self.topics or len(self.topics) < KINDS_MAX:
            self.topics[topic] = self.topics.get(topic, 0) + 1


@dataclass(slots=True)
class DeadLetterSummary:
    """The dead letters of a group by kind, the most frequent first. `error`: why not all could be read."""

    group: str
    kinds: list[ReasonCount] = field(default_factory=list)
    error: str = ""

    @property
    def count(self) -> int:
        return sum(kind.count for kind in self.kinds)

    @property
    def redriven(self) -> int:
        return sum(kind.redriven for kind in self.kinds)


class Summing:
    """Counts the dead letters of one group as they come."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._kinds: dict[str, ReasonCount] = {}

    def add(self, letter: DeadLetter) -> None:
        kind = letter.kind
        if kind not in self._kinds and len(self._kinds) >= KINDS_MAX:
            kind = OTHERS
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = ReasonCount(kind)
        found.add(letter)

    def summary(self, error: str = "") -> DeadLetterSummary:
        kinds = sorted(self._kinds.values(), key=lambda kind: (-kind.count, kind.kind))
        return DeadLetterSummary(self._group, kinds, error)


def group_of(topic: str) -> str:
    """The group whose dead letters a topic holds; empty if it holds none."""
    return topic.removeprefix(DEAD_LETTER_PREFIX) if topic.startswith(DEAD_LETTER_PREFIX) else ""
