"""Messages on their way out: checked, named and packed before anything else happens to them.

Rules: what no broker would take is refused here, with the reason, before it costs a round trip. Every message
has a unique id, which stays the same however often it is sent. Bodies over the threshold are packed if that
makes them smaller; batches carry only bodies that are not. Any thread may compose.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from types import CodeType, FrameType
from typing import Any, TypedDict, TypeVar

from penstock.client.compression import flag_of, pack, require
from penstock.client.identity import UniqueIds
from penstock.client.options import Compression, Durability, ProducerOptions, require_choice
from penstock.errors import MessageError, MessageTooLargeError, TopicNameError, did_you_mean
from penstock.message import Message, PropertyName, encode_properties
from penstock.message.properties import PROPERTIES_SIZE_MAX
from penstock.protocol.bodies.queues import MessageQueue

T = TypeVar("T")
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")
_RETRY_PREFIX = "%RETRY%"
_UNIQ_KEY = PropertyName.UNIQ_KEY
# Messages that have one of these travel alone.
_SINGLE = frozenset(
    (
        PropertyName.DELAY,
        PropertyName.TIMER_DELAY_SEC,
        PropertyName.TIMER_DELAY_MS,
        PropertyName.TIMER_DELIVER_MS,
    )
)
# As far as milliseconds fit into a field.
_SECONDS_MAX = 2**53 // 1000
_SEQUENCE_MAX = 2**62 - 1
_TRANSACTION, _PRODUCER_GROUP = "TRAN_MSG", "PGROUP"
_DELAYS = (PropertyName.DELAY, "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
# Properties that have an argument of their own.
_RESERVED = {
    PropertyName.TAGS: "tag=",
    PropertyName.KEYS: "keys=",
    PropertyName.DELAY: "delay_level=",
    PropertyName.TIMER_DELAY_SEC: "delay=",
    PropertyName.TIMER_DELAY_MS: "delay=",
    PropertyName.TIMER_DELIVER_MS: "deliver_at=",
    _TRANSACTION: "producer.transaction(...)",
    _PRODUCER_GROUP: "producer.transaction(...)",
}
# What a batch adds to body and properties of each message.
RECORD_OVERHEAD = 22
# More names than any program uses; over it the set of known ones begins anew.
_TOPICS_REMEMBERED = 10_000
# So few characters fit the limit of properties whatever they are.
_PLAIN_CHARACTERS_MAX = PROPERTIES_SIZE_MAX // 4
# Properties that are worth comparing with the next message's, and safe whatever is put behind them.
_COMMON_MAX = 8
_COMMON_CHARACTERS_MAX = 1_000


class MessageParts(TypedDict, total=False):
    """What a send says besides topic and body. `keys` are found by `Admin.query_messages`; messages of one
    `queue_key` go to one queue, in order; `queue` names one; `delay_level` is one of RocketMQ's 18, from 1 s to 2
    h; `delay`, in seconds, or `deliver_at`, a moment, is any other time, days ahead if need be; `durability` is
    what the broker must reach before it answers; `sequence` is the message's number, of a producer with a
    `producer_id`."""

    tag: str
    keys: str | Iterable[str]
    properties: Mapping[str, str] | None
    flag: int
    queue_key: str
    queue: MessageQueue | None
    delay_level: int
    delay: float | timedelta | None
    deliver_at: datetime | float | None
    durability: str
    sequence: int | None


class Outgoing:
    """One message with where it wants to go and who waits for it.

    `future` is anything with `set_result` and `set_exception`; `callback` is called with result and error, in
    the event loop. `is_solo` keeps it out of batches.
    """

    __slots__ = (
        "body",
        "callback",
        "durability",
        "flag",
        "future",
        "is_half",
        "is_homed",
        "is_solo",
        "msg_id",
        "properties",
        "queue",
        "queue_key",
        "sequence",
        "size",
        "sys_flag",
        "topic",
    )

    def __init__(self, topic: str, body: bytes, properties: bytes, flag: int, msg_id: str) -> None:
        self.topic = topic
        self.body = body
        self.properties = properties
        self.flag = flag
        self.msg_id = msg_id
        # What it takes of a batch, and of the room for what waits.
        self.size = len(body) + len(properties) + RECORD_OVERHEAD
        self.sys_flag = 0
        self.is_solo = False
        # The half of a transaction: sent again it would be another one, unless sends are idempotent.
        self.is_half = False
        # The number that the program gave it; -1: none.
        self.sequence = -1
        self.queue_key = ""
        # Whether `queue_key` is the message's own key, whose queue stays the same while a broker set has no master.
        self.is_homed = False
        self.queue: MessageQueue | None = None
        self.durability = ""
        self.future: Any = None
        self.callback: Any = None


class Composer:
    """Makes outgoing messages of what a program hands over."""

    def __init__(self, options: ProducerOptions, unique_ids: UniqueIds) -> None:
        self._options = options
        self._unique_ids = unique_ids
        self._compression = Compression(options.compression)
        self._topics: set[str] = set()
        self._is_idempotent = options.idempotent
        self._gives_sequences = bool(options.producer_id)
        require(self._compression)
        # Shorter bodies need no look at limits and compression.
        self._plain_below = min(options.compress_over_bytes, options.message_bytes_max)

    def compose(
        self,
        message: Message | str,
        body: bytes | bytearray | memoryview | None = None,
        *,
        tag: str = "",
        keys: str | Iterable[str] = "",
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        queue_key: str = "",
        queue: MessageQueue | None = None,
        delay_level: int = 0,
        delay: float | timedelta | None = None,
        deliver_at: datetime | float | None = None,
        durability: str = "",
        sequence: int | None = None,
        **unknown: object,
    ) -> Outgoing:
        """An outgoing message, from a `Message` or from its parts."""
        if sequence is not None or self._gives_sequences:
            self._check_sequence(sequence, queue is not None or bool(queue_key))
        if (
            type(message) is str
            and type(body) is bytes
            and message in self._topics
            and len(body) < self._plain_below
            and not (properties or delay_level or queue is not None)
            and delay is None
            and deliver_at is None
            and sequence is None
            and type(keys) is str
            and type(tag) is str
            and type(queue_key) is str
            and type(flag) is int
            and not flag >> 31
            and not unknown
        ):
            text, msg_id = self._plain_properties(tag, keys)
            if text:
                outgoing = Outgoing(message, body, text, flag, msg_id)
                outgoing.queue_key = queue_key
                if keys and self._options.partition_by_key:
                    self._home(outgoing, keys)
                if durability or self._options.durability:
                    self._demand(outgoing, durability)
                return outgoing
        check_parts(unknown)
        _check_types(tag, properties, flag, queue_key, queue)
        if isinstance(message, Message):
            if body is not None or tag or keys or properties or flag:
                raise MessageError("a Message was given together with parts of one", "give either")
            _check_properties(message.properties)
            _check_flag(message.flag)
            topic, data, flag = message.topic, _bytes(message.body), message.flag
            found = dict(message.properties)
        else:
            given: object = message
            if isinstance(given, list | tuple):
                raise MessageError(
                    f"a {type(given).__name__} was given as message",
                    "send takes a topic and a body, or one Message; send_batch takes many",
                )
            for name in _RESERVED.keys() & dict(properties or {}).keys():
                raise MessageError(f"property {name!r} is reserved", f"use {_RESERVED[name]}")
            topic, data, found = message, _bytes(body), dict(properties or {})
            if tag:
                found[PropertyName.TAGS] = tag
            if keys:
                found[PropertyName.KEYS] = keys if isinstance(keys, str) else " ".join(_texts("keys", keys))
        if delay_level:
            found[PropertyName.DELAY] = str(_positive("delay_level", delay_level))
        if delay is not None or deliver_at is not None:
            found |= _time_of(delay_level, delay, deliver_at)
        outgoing = self._make(topic, data, found, flag)
        self._demand(outgoing, durability)
        if queue is not None:
            if queue.topic != topic:
                raise MessageError(f"queue {queue} is not one of topic {topic!r}", "take one of its route")
            outgoing.queue = queue
        outgoing.queue_key = queue_key
        if self._options.partition_by_key:
            self._home(outgoing, found.get(PropertyName.KEYS, ""))
        if sequence is not None:
            # In a batch its neighbours would have to be the same again.
            outgoing.sequence, outgoing.is_solo = sequence, True
            # And while its broker set has no master the key must not lead to another set.
            outgoing.is_homed = outgoing.is_homed or bool(queue_key)
        return outgoing

    def _check_sequence(self, sequence: object, has_queue: bool) -> None:
        if not self._gives_sequences:
            raise MessageError(
                "a sequence was given, and the producer has no producer_id",
                "make the producer with idempotent=True and a producer_id of its own",
            )
        if sequence is None:
            raise MessageError(
                "the producer has a producer_id, and no sequence was given",
                "give each message its own: sequence=...; or leave producer_id out",
            )
        if not isinstance(sequence, int) or isinstance(sequence, bool) or not 0 <= sequence <= _SEQUENCE_MAX:
            raise MessageError(f"sequence is {sequence!r}", f"use a whole number from 0 to {_SEQUENCE_MAX}")
        if not has_queue:
            raise MessageError(
                "a sequence was given, and no queue: sent again the message could go to another one",
                "give queue_key or queue, too, the same for the same sequence",
            )

    def _plain_properties(self, tag: str, keys: str) -> tuple[bytes, str]:
        """Properties of a message that has at most these, with its id; nothing if the quick way will not do."""
        msg_id = self._unique_ids.next()
        if not tag and not keys:
            return f"UNIQ_KEY\x01{msg_id}\x02".encode(), msg_id
        count = 1
        text = f"UNIQ_KEY\x01{msg_id}\x02"
        if keys:
            count += 1
            text = f"KEYS\x01{keys}\x02{text}"
        if tag:
            count += 1
            text = f"TAGS\x01{tag}\x02{text}"
        if text.count("\x01") != count or text.count("\x02") != count or len(text) > _PLAIN_CHARACTERS_MAX:
            return b"", ""
        try:
            return text.encode(), msg_id
        except UnicodeEncodeError:
            return b"", ""

    def compose_batch(
        self, messages: Iterable[Message], queue_key: str = "", durability: str = ""
    ) -> list[Outgoing]:
        """Outgoing messages whose bodies stay as they are."""
        if self._gives_sequences:
            raise MessageError(
                "the producer has a producer_id, and messages of a batch have no sequences of their own",
                "send them one by one, each with its sequence; or leave producer_id out",
            )
        if isinstance(messages, Message) or not isinstance(messages, Iterable):
            kind = type(messages).__name__
            raise MessageError(f"a batch is a list of Message, not {kind}", "use send for one message")
        _check_types("", None, 0, queue_key, None)
        given = messages if isinstance(messages, list) else list(messages)
        demand = durability or self._options.durability
        if demand:
            require_choice("durability", demand, tuple(Durability))
        limit, topics = self._options.message_bytes_max, self._topics
        composed: list[Outgoing] = []
        # Messages of a batch mostly have the same properties: those are turned into text once.
        common: Mapping[str, str] = {}
        prefix = ""
        for message, msg_id in zip(given, self._unique_ids.take(len(given)), strict=True):
            if not isinstance(message, Message):
                raise MessageError(
                    f"a batch is made of Message, not {type(message).__name__}", "use Message.of"
                )
            topic, body, properties = message.topic, message.body, message.properties
            if topic in topics and type(body) is bytes and len(body) <= limit and properties == common:
                text = f"{prefix}UNIQ_KEY\x01{msg_id}\x02".encode()
                outgoing = Outgoing(topic, body, text, message.flag, msg_id)
            else:
                outgoing = self._make(topic, _bytes(body), dict(properties), message.flag, may_pack=False)
                if _may_be_common(properties):
                    common, prefix = properties, property_bytes(properties).decode()
            outgoing.queue_key = queue_key
            outgoing.durability = demand
            composed.append(outgoing)
            if self._options.partition_by_key:
                self._home(outgoing, message.properties.get(PropertyName.KEYS, ""))
                if outgoing.queue_key != composed[0].queue_key:
                    raise MessageError(
                        "messages of one batch have different keys, which belong to different queues",
                        "send them one by one (linger_ms gathers them by queue), or give the batch a queue_key",
                    )
        return composed

    def _demand(self, outgoing: Outgoing, durability: str) -> None:
        demand = durability or self._options.durability
        if demand:
            require_choice("durability", demand, tuple(Durability))
            outgoing.durability = demand

    def _home(self, outgoing: Outgoing, keys: str) -> None:
        """Have a message go to the queue of its first key, unless it was told where to go."""
        key = next((word for word in keys.split(" ") if word), "")
        if key and not outgoing.queue_key and outgoing.queue is None:
            outgoing.queue_key, outgoing.is_homed = key, True

    def _make(
        self, topic: str, body: bytes, properties: dict[str, str], flag: int, may_pack: bool = True
    ) -> Outgoing:
        if topic not in self._topics:
            self._check_topic(topic)
        limit = self._options.message_bytes_max
        if len(body) > limit:
            raise MessageTooLargeError(
                f"the body takes {len(body)} bytes, the limit is {limit}",
                "split it, or raise message_bytes_max here and maxMessageSize at the broker",
            )
        if properties:
            msg_id = properties.get(_UNIQ_KEY) or self._unique_ids.next()
            properties[_UNIQ_KEY] = msg_id
            text = property_bytes(properties)
        else:
            text, msg_id = self._plain_properties("", "")
        outgoing = Outgoing(topic, body, text, flag, msg_id)
        if (
            not _SINGLE.isdisjoint(properties)
            or properties.get(PropertyName.WAIT) == "false"  # a batch waits for the disk as a whole
            or topic.startswith(_RETRY_PREFIX)
        ):
            outgoing.is_solo = True
        if may_pack and len(body) >= self._options.compress_over_bytes:
            packed = pack(body, self._compression, self._options.compression_level)
            if len(packed) < len(body):  # never so without compression
                outgoing.body = packed
                outgoing.size += len(packed) - len(body)
                outgoing.sys_flag = flag_of(self._compression)
                outgoing.is_solo = True
        return outgoing

    def _check_topic(self, topic: str) -> None:
        topic = topic_text(topic)
        if topic.startswith(_RETRY_PREFIX):
            if self._is_idempotent:
                raise MessageError(
                    f"topic {topic} takes no idempotent sends", "use another producer for retries"
                )
            return  # such messages travel alone, so they never take the quick way
        if len(self._topics) >= _TOPICS_REMEMBERED:
            self._topics.clear()
        self._topics.add(topic)


def compose_half(
    composer: Composer,
    group: str,
    message: Message | str,
    body: bytes | bytearray | memoryview | None,
    parts: MessageParts,
) -> Outgoing:
    """The half of a transaction of a producer group. It cannot be delayed: RocketMQ's producers take the delay away
    without a word, and a message that comes at once was not meant so."""
    found = message.properties if isinstance(message, Message) else parts.get("properties") or {}
    if parts.get("delay_level") or any(name in found for name in _DELAYS):
        raise MessageError("a message cannot be both delayed and transactional", "leave one of them out")
    if parts.get("sequence") is not None:
        raise MessageError(
            "a transaction has no sequence of the program's: one that was rolled back could not be begun again",
            "use a producer without producer_id for transactions",
        )
    half = composer.compose(message, body, **parts)
    marks = property_bytes({_TRANSACTION: "true", _PRODUCER_GROUP: group})
    half.properties += marks
    half.size += len(marks)
    return half


def property_bytes(properties: Mapping[str, str]) -> bytes:
    """Text of the properties. The quick way counts separators; whatever it doubts goes the careful way."""
    try:
        text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
        data = text.encode()
    except UnicodeEncodeError:
        return encode_properties(properties)
    count = len(properties)
    if (
        text.count("\x01") != count
        or text.count("\x02") != count
        or len(data) > PROPERTIES_SIZE_MAX
        or "\x01\x02" in text
        or "\x02\x01" in text
        or text[:1] == "\x01"
    ):
        return encode_properties(properties)
    return data


def _may_be_common(properties: Mapping[str, str]) -> bool:
    """Whether a unique id can simply be put behind their text: no id of their own, nothing that sets them apart."""
    return (
        len(properties) <= _COMMON_MAX
        and _UNIQ_KEY not in properties
        and _SINGLE.isdisjoint(properties)
        and sum(map(len, properties.values())) <= _COMMON_CHARACTERS_MAX
    )


def _bytes(body: object) -> bytes:
    if isinstance(body, bytes):
        return body
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    kind = type(body).__name__
    hint = "encode text first: text.encode()" if isinstance(body, str) else "give the body as bytes"
    raise MessageError(f"a body is bytes, not {kind}", hint)


def topic_text(topic: str) -> str:
    """A topic's name; TopicNameError if there can be none of it."""
    given: object = topic
    if not isinstance(given, str) or not _TOPIC.fullmatch(given):
        raise TopicNameError(
            f"invalid topic name {str(given)[:140]!r}",
            "use 1 to 127 letters, digits and the characters % | _ -",
        )
    return given


def check_callback(on_result: T) -> T:
    """Refuse what cannot be called: it would be found long after the call."""
    if on_result is not None and not callable(on_result):
        raise MessageError(f"on_result is {on_result!r}", "use a function of a result and an error")
    return on_result


def check_parts(given: Iterable[str], known: Iterable[str] = MessageParts.__annotations__) -> None:
    """Refuse what is not known, as a part of a message, in the name of the function that the program called."""
    for name in given:
        called = _public_function()
        own = called.co_varnames[1 : called.co_argcount + called.co_kwonlyargcount]
        near = did_you_mean(name, (*own, *known))
        raise TypeError(f"{called.co_name}() got an unexpected argument {name!r}{near and f'; {near}'}")


def _public_function() -> CodeType:
    """The outermost public function of this package that is being called."""
    frame: FrameType | None = sys._getframe(1)
    found = Composer.compose.__code__
    while frame is not None and frame.f_globals.get("__name__", "").startswith("penstock.client."):
        if not frame.f_code.co_name.startswith("_"):
            found = frame.f_code
        frame = frame.f_back
    return found


def _check_types(tag: object, properties: object, flag: object, queue_key: object, queue: object) -> None:
    """Refuse parts of a wrong type here, with their names: further on they would fail far from the call."""
    for name, value in (("tag", tag), ("queue_key", queue_key)):
        if not isinstance(value, str):
            raise MessageError(f"{name} is {value!r}", f'use text: {name}="..."')
    _check_flag(flag)
    if queue is not None and not isinstance(queue, MessageQueue):
        raise MessageError(f"queue is {queue!r}", "use one of producer.queues(topic)")
    if properties is not None:
        _check_properties(properties)


def _check_flag(flag: object) -> None:
    if not isinstance(flag, int) or not -(2**31) <= flag < 2**31:
        raise MessageError(f"flag is {flag!r}", "use a whole number of 32 bits")


def _check_properties(properties: object) -> None:
    if not isinstance(properties, Mapping):
        raise MessageError(f"properties are {properties!r}", "use a mapping of names to values, both text")
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise MessageError(f"property {name!r} is {value!r}", "names and values of properties are text")


def _texts(name: str, values: object) -> Iterable[str]:
    if isinstance(values, Iterable) and not isinstance(values, bytes | bytearray | Mapping):
        found = [*values]
        if all(isinstance(value, str) for value in found):
            return found
    raise MessageError(f"{name} is {values!r}", "use text, or a list of texts")


def _time_of(
    level: int, delay: float | timedelta | None, deliver_at: datetime | float | None
) -> dict[str, str]:
    """The property that asks for a time."""
    if level or (delay is not None and deliver_at is not None):
        raise MessageError("a message is delayed in one way only", "use delay_level, delay or deliver_at")
    if delay is not None:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        return {PropertyName.TIMER_DELAY_MS: str(_milliseconds("delay", seconds))}
    if isinstance(deliver_at, datetime):
        if deliver_at.tzinfo is None:
            raise MessageError(
                "deliver_at has no time zone", "use datetime.now(UTC) + timedelta(...), or seconds"
            )
        deliver_at = deliver_at.timestamp()
    return {PropertyName.TIMER_DELIVER_MS: str(_milliseconds("deliver_at", deliver_at))}


def _milliseconds(name: str, seconds: object) -> int:
    """Rounded up: a message is never early."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds <= _SECONDS_MAX:  # type: ignore[operator]
        raise MessageError(f"{name} is {seconds!r}", "use seconds, 0 or more")
    return math.ceil(round(seconds * 1000, 3))  # type: ignore[operator]


def _positive(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
        raise MessageError(f"{name} is {value!r}", "use a whole number from 1 on")
    return value
