"""The texts of POP: which messages an answer holds, the handle of each message, and where its retries are.

    startOffsetInfo   <r> <queue> <start offset>;...          one item for each queue that gave messages
    msgOffsetInfo     <r> <queue> <offset>,<offset>;...       the same items, with the offset of each message
    orderCountInfo    <r> qo<queue>%<offset> <count>;...      in order: how often a message was popped before, and the
                      <r> <queue> <count>                     least of that in the queue
    handle            <start> <pop time> <invisible time> <revive queue> <r> <broker> <queue> <offset>

`<r>` says where a message was: 0 in its topic, 1 in the retry topic %RETRY%<group>_<topic>, 2 in
%RETRY%<group>+<topic>. A client makes the handle of a message from its answer's header and sends it back with the
acknowledgement; RocketMQ's proxies append a log position. Rule: texts of peers are taken apart with limits, and
whatever is not exactly so is refused (A20). Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from penstock.errors import CodecError
from penstock.protocol.topic_names import RETRY_PREFIX

HANDLE_SIZE_MAX = 512
INFO_SIZE_MAX = 64 * 1024
NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
_KINDS = (NORMAL, RETRY_V1, RETRY_V2)
_INT64_MAX = 2**63 - 1
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PopHandle:
    """What names one message that a group has popped and not yet acknowledged."""

    start_offset: int
    pop_time: int
    invisible_time: int
    revive_queue: int
    kind: str
    broker_name: str
    queue_id: int
    offset: int

    def __str__(self) -> str:
        return (
            f"{self.start_offset} {self.pop_time} {self.invisible_time} {self.revive_queue} {self.kind} "
            f"{self.broker_name} {self.queue_id} {self.offset}"
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """From the text of a peer. Raises CodecError for anything that no broker has handed out."""
        items = text.split(" ") if len(text) <= HANDLE_SIZE_MAX else []
        if len(items) == 9:
            # RocketMQ's proxies append the log position. It is ignored: a client may have made it up.
            appended = items.pop()
            if appended != "-1":
                _number(appended, text)
        if len(items) != 8 or items[4] not in _KINDS or not items[5]:
            raise _no_handle(text)
        numbers = [_number(items[place], text) for place in (0, 1, 2, 3, 6, 7)]
        start, popped, invisible, revive_queue, queue_id, offset = numbers
        if max(revive_queue, queue_id) > _INT32_MAX or offset < start:
            raise _no_handle(text)
        handle = cls(start, popped, invisible, revive_queue, items[4], items[5], queue_id, offset)
        if str(handle) != " ".join(items):  # such as zeros before a number
            raise _no_handle(text)
        return handle


def _number(text: str, whole: str) -> int:
    if not 0 < len(text) <= 19 or not (text.isascii() and text.isdigit()) or int(text) > _INT64_MAX:
        raise _no_handle(whole)
    return int(text)


def _no_handle(text: str) -> CodecError:
    return CodecError(f"{text[:80]!r} is no handle of a popped message", "send back what the broker gave")


# -- retry topics ----------------------------------------------------------------------------------------------


def pop_retry_topic(group: str, topic: str, kind: str = RETRY_V1) -> str:
    """Where popped messages of a topic go that a group did not acknowledge."""
    return f"{RETRY_PREFIX}{group}{'+' if kind == RETRY_V2 else '_'}{topic}"


def real_topic(group: str, topic: str, kind: str) -> str:
    """The topic that a message was popped from, by what its handle says of it."""
    return topic if kind == NORMAL else pop_retry_topic(group, topic, kind)


def topic_kind(group: str, topic: str) -> tuple[str, str]:
    """What kind of topic this is to a group, and whose retries it holds: the topic itself where it is no retry
    topic."""
    for kind in (RETRY_V1, RETRY_V2):
        prefix = pop_retry_topic(group, "", kind)
        if topic.startswith(prefix) and len(topic) > len(prefix):
            return kind, topic[len(prefix) :]
    return NORMAL, topic


# -- infos -----------------------------------------------------------------------------------------------------

# Kind of topic and queue: where a run of messages was.
Source = tuple[str, int]


def start_offset_info(starts: Mapping[Source, int]) -> str:
    return ";".join(f"{kind} {queue} {start}" for (kind, queue), start in starts.items())


def message_offset_info(offsets: Mapping[Source, Sequence[int]]) -> str:
    return ";".join(
        f"{kind} {queue} {','.join(map(str, numbers))}" for (kind, queue), numbers in offsets.items()
    )


def order_count_info(tries: Mapping[int, Mapping[int, int]]) -> str:
    """Of messages by queue and offset; in order there are none of retry topics. Those that come for the first time
    are not listed, as RocketMQ does not."""
    items = []
    for queue, counts in tries.items():
        items += [f"{NORMAL} qo{queue}%{offset} {count}" for offset, count in counts.items() if count]
        items.append(f"{NORMAL} {queue} {min(counts.values(), default=0)}")
    return ";".join(items)


def parse_order_count_info(text: str) -> dict[tuple[int, int], int]:
    """Counts by queue and offset. Raises CodecError for what is none."""
    if len(text) > INFO_SIZE_MAX:
        raise CodecError("the counts of a pop are too many")
    counts = {}
    for item in filter(None, text.split(";")):
        parts = item.split(" ")
        if len(parts) != 3:
            raise CodecError(f"{item[:80]!r} does not say how often a message was popped")
        name, count = parts[1], _info_number(parts[2])
        if name.startswith("qo"):
            queue, _, offset = name[2:].partition("%")
            counts[_info_number(queue), _info_number(offset)] = count
        else:
            _info_number(name)
    return counts


def parse_start_offset_info(text: str) -> dict[Source, int]:
    """Raises CodecError for what is none."""
    return {source: _info_number(value) for source, value in _items(text)}


def parse_message_offset_info(text: str) -> dict[Source, list[int]]:
    """Raises CodecError for what is none."""
    return {source: [_info_number(number) for number in value.split(",")] for source, value in _items(text)}


def _items(text: str) -> Iterable[tuple[Source, str]]:
    if len(text) > INFO_SIZE_MAX:
        raise CodecError("the offsets of a pop are too many")
    for item in filter(None, text.split(";")):
        parts = item.split(" ")
        if len(parts) != 3:
            raise CodecError(f"{item[:80]!r} does not say where a popped message is")
        yield (parts[0], _info_number(parts[1])), parts[2]


def _info_number(text: str) -> int:
    if not 0 < len(text) <= 19 or not (text.isascii() and text.isdigit()):
        raise CodecError(f"{text[:40]!r} is no number of a popped message")
    return int(text)
