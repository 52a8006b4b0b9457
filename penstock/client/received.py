"""A message as a consumer sees it, and the one function that turns an answer's body into messages.

Rules: a body that was packed by its producer is unpacked when it is first read, with a limit on its size (A5),
in the thread that reads it: a bomb or damage fails that one message, not the queue. A message of a retry topic
shows the topic it was first sent to. Records are checked (lengths, checksums, topic) before anything is shown.

`decode_records` is all that knows records here. Properties, hosts and ids are read when they are asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock._hot.decode import RawRecord, decode_run
from penstock.client.compression import UNPACKED_BYTES_MAX, unpack
from penstock.errors import CorruptRecordError, OptionError
from penstock.message import (
    HostAddress,
    StoredMessage,
    SystemFlag,
    decode_properties,
    decode_record,
    encode_record,
)
from penstock.message.properties import PropertyName
from penstock.protocol.bodies import MessageQueue

if TYPE_CHECKING:
    from penstock.client.pop_messages import Popped
    from penstock.client.process_queue import ProcessQueue, Run

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
_SIZE = struct.Struct(">i")
_COMPRESSED = int(SystemFlag.COMPRESSED)


def retry_topic(group: str) -> str:
    """Where messages of a group wait for being tried again."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Where messages of a group end that were tried too often."""
    return DEAD_LETTER_PREFIX + group


@dataclass(frozen=True, slots=True)
class Retry:
    """Returned by a listener: not done, try again later. The level is the broker's delay level; 0 leaves it to
    the broker, which waits longer each time; a negative one sends the message to the dead letters. The reason is
    noted on the message and stays on it if it becomes a dead letter."""

    delay_level: int = 0
    reason: str = ""

    def __post_init__(self) -> None:
        level: object = self.delay_level
        if not isinstance(level, int) or isinstance(level, bool):
            raise OptionError(
                f"delay_level is {level!r}", "use the number of a delay level, as 3 for 10 s, 0 or -1"
            )
        if not isinstance(self.reason, str):
            raise OptionError(f"reason is {self.reason!r}", "use text")


RETRY = Retry()
DEAD_LETTER = Retry(-1)


class ReceivedMessage:
    """One message. Everything but `body` and `properties` is a plain attribute or cheap."""

    __slots__ = (
        "_body",
        "_body_max",
        "_properties",
        "_raw",
        "owner",
        "popped",
        "queue",
        "run",
        "started_ms",
        "topic",
        "tries",
        "verdict",
    )

    def __init__(self, raw: RawRecord, queue: MessageQueue, body_bytes_max: int = UNPACKED_BYTES_MAX) -> None:
        self._raw = raw
        self._body: bytes | None = None
        self._properties: Mapping[str, str] | None = None
        self._body_max = body_bytes_max
        # The queue it was pulled from; for a message that is tried again, one of the retry topic.
        self.queue = queue
        # The topic it was sent to.
        self.topic = queue.topic
        # How often it was given to a listener before and not done.
        self.tries = raw.reconsume_times
        # The consumer's own notes: since when it is in hand (0: not), what became of it, where it is kept as long
        # as it is not done, and whose acknowledgement it waits for.
        self.started_ms = 0
        self.verdict: Retry | None = None
        self.run: Run | None = None
        self.owner: ProcessQueue | None = None
        # Of a message that was popped: by which handle the broker knows it, and until when it is ours.
        self.popped: Popped | None = None

    @classmethod
    def of(
        cls, stored: StoredMessage, queue: MessageQueue, body_bytes_max: int = UNPACKED_BYTES_MAX
    ) -> ReceivedMessage:
        """The message that a consumer would see of this one."""
        (raw,), _ = decode_run(encode_record(stored), b"")
        message = cls(raw, queue, body_bytes_max)
        message.topic = message.shown_topic(stored.topic)
        return message

    def shown_topic(self, topic: str) -> str:
        """The topic that it was first sent to, if `topic` is one for messages that are tried again."""
        return self.properties.get(RETRY_TOPIC, topic) if topic.startswith(RETRY_PREFIX) else topic

    def __repr__(self) -> str:
        return f"<ReceivedMessage {self.msg_id} of {self.queue} at {self.queue_offset}>"

    @property
    def body(self) -> bytes:
        """The body as it was sent. CodecError if it was packed and cannot be unpacked."""
        if self._body is None:
            raw = self._raw
            packed = raw.sys_flag & _COMPRESSED
            self._body = unpack(raw.body, raw.sys_flag, self._body_max) if packed else raw.body
        return self._body

    @property
    def properties(self) -> Mapping[str, str]:
        if self._properties is None:
            self._properties = decode_properties(self._raw.properties)
        return self._properties

    @property
    def tag(self) -> str:
        return self.properties.get(PropertyName.TAGS, "")

    @property
    def keys(self) -> list[str]:
        """The words of KEYS."""
        return [key for key in self.properties.get(PropertyName.KEYS, "").split(" ") if key]

    @property
    def msg_id(self) -> str:
        """The id that its producer gave it, the same however often it is delivered."""
        return self.properties.get(PropertyName.UNIQ_KEY) or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        """The id of this stored copy: its broker and its place there."""
        return f"{self._raw.store_host.hex().upper()}{self._raw.physical_offset:016X}"

    @property
    def queue_offset(self) -> int:
        return self._raw.queue_offset

    @property
    def log_offset(self) -> int:
        """Its place in the broker's log."""
        return self._raw.physical_offset

    @property
    def size(self) -> int:
        """Bytes of the stored record."""
        return self._raw.size

    @property
    def flag(self) -> int:
        """The producer's own number."""
        return self._raw.flag

    @property
    def sys_flag(self) -> int:
        return self._raw.sys_flag

    @property
    def born_timestamp(self) -> int:
        """When it was sent, by the producer's clock, in milliseconds."""
        return self._raw.born_timestamp

    @property
    def born_host(self) -> HostAddress:
        return HostAddress.decode(self._raw.born_host)

    @property
    def store_timestamp(self) -> int:
        """When it was stored, by the broker's clock, in milliseconds."""
        return self._raw.store_timestamp

    @property
    def store_host(self) -> HostAddress:
        return HostAddress.decode(self._raw.store_host)

    @property
    def stored(self) -> StoredMessage:
        """The record as it is stored, body still packed."""
        raw = self._raw
        return StoredMessage(
            raw.topic.decode("utf-8", "replace"),
            raw.body,
            self.properties,
            raw.queue_id,
            raw.queue_offset,
            raw.physical_offset,
            raw.size,
            raw.body_crc,
            raw.flag,
            raw.sys_flag,
            raw.born_timestamp,
            self.born_host,
            raw.store_timestamp,
            self.store_host,
            raw.reconsume_times,
            raw.prepared_offset,
        )

    def retry_later(self, delay_level: int = 0, reason: str = "") -> None:
        """While iterating: this message is not done, have it tried again later."""
        self.verdict = Retry(delay_level, reason)


def decode_records(
    body: bytes | bytearray | memoryview,
    queue: MessageQueue | None = None,
    body_bytes_max: int = UNPACKED_BYTES_MAX,
) -> list[ReceivedMessage]:
    """The messages of an answer. `queue` is where they were pulled from; else it is made of what they say.

    CorruptRecordError carries the offset in the body at which the first bad record begins.
    """
    data = bytes(body)
    records, end = decode_run(data, b"" if queue is None else queue.topic.encode())
    if end < len(data):
        raise CorruptRecordError(_what_is_wrong(data, end, queue), end)
    if queue is None:
        messages = [
            ReceivedMessage(
                record,
                MessageQueue(record.topic.decode("utf-8", "replace"), "", record.queue_id),
                body_bytes_max,
            )
            for record in records
        ]
    else:
        messages = [ReceivedMessage(record, queue, body_bytes_max) for record in records]
        if not queue.topic.startswith(RETRY_PREFIX):
            return messages
    for message in messages:
        message.topic = message.shown_topic(message.queue.topic)
    return messages


def _what_is_wrong(data: bytes, at: int, queue: MessageQueue | None) -> str:
    """Why the record at an offset of an answer was not taken."""
    size = _SIZE.unpack_from(data, at)[0] if len(data) - at >= _SIZE.size else 0
    if not 0 < size <= len(data) - at:
        return f"a record of {size} bytes where {len(data) - at} are left"
    try:
        stored = decode_record(memoryview(data)[at : at + size])
    except CorruptRecordError as error:
        return error.message
    return f"a record of topic {stored.topic[:80]!r} in an answer for {queue}"
