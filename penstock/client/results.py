"""What a send came to. Plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple, overload

from penstock.errors import CodecError, FieldError
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import DURABILITY_FIELD, REPEATED_FIELD


class SendStatus(Enum):
    """All of these mean that the message is stored; all but the first that it is less safe than configured."""

    OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"


_STATUS = {
    int(ResponseCode.SUCCESS): SendStatus.OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
}


class Recalled(NamedTuple):
    """A message that was taken back before its time."""

    msg_id: str
    region: str = ""


class SendResult(NamedTuple):
    """A stored message. `msg_id` was made by the client and stays the same through retries; `offset_msg_id` is
    where it lies. `durability` is what the broker says was reached, or empty if it does not say. `recall_handle`
    takes a message back that waits for its time, see `Producer.recall`. `is_repeated`: it was stored before, by a
    send that this one repeats; only idempotent producers know."""

    status: SendStatus
    msg_id: str
    queue: MessageQueue
    queue_offset: int
    durability: str = ""
    offset_msg_id: str = ""
    transaction_id: str = ""
    region_id: str = ""
    trace_on: bool = True
    attempts: int = 1
    recall_handle: str = ""
    is_repeated: bool = False

    @property
    def is_ok(self) -> bool:
        """Whether it is stored as safely as the broker is configured to store."""
        return self.status is SendStatus.OK


class BatchResult(Sequence[SendResult]):
    """The results of a batch's messages, each made when it is looked at: offsets follow one another."""

    __slots__ = ("_first", "_ids", "_offset_ids")

    def __init__(self, first: SendResult, ids: Sequence[str]) -> None:
        self._first = first
        self._ids = ids
        self._offset_ids: list[str] | None = None

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> SendResult: ...

    @overload
    def __getitem__(self, index: slice) -> list[SendResult]: ...

    def __getitem__(self, index: int | slice) -> SendResult | list[SendResult]:
        numbers = range(len(self._ids))
        if isinstance(index, slice):
            return [self._make(number) for number in numbers[index]]
        return self._make(numbers[index])

    def __iter__(self) -> Iterator[SendResult]:
        return map(self._make, range(len(self._ids)))

    def __repr__(self) -> str:
        return f"BatchResult({len(self)} messages from {self._first.queue}@{self._first.queue_offset})"

    def _make(self, number: int) -> SendResult:
        if self._offset_ids is None:
            # One text for the whole batch, joined by commas; RocketMQ leaves it out for inner batches.
            ids = self._first.offset_msg_id.split(",")
            self._offset_ids = ids if len(ids) == len(self._ids) else [""] * len(self._ids)
        status, _, queue, offset, durability, _, _, region, trace, attempts, _, is_repeated = self._first
        return SendResult(
            status,
            self._ids[number],
            queue,
            offset + number,
            durability,
            self._offset_ids[number],
            "",
            region,
            trace,
            attempts,
            is_repeated=is_repeated,
        )


def is_stored(code: int) -> bool:
    """Whether a response code means that the message was stored."""
    return code in _STATUS


def read_result(
    response: Command, msg_id: str, topic: str, broker_name: str, attempts: int = 1
) -> SendResult:
    """The result in the answer to a send. CodecError if it lacks what an answer must have."""
    fields = response.fields
    try:
        queue = MessageQueue(topic, broker_name, response.integer("queueId", -(2**31), 2**31 - 1))
        queue_offset = response.integer("queueOffset")
    except FieldError as error:
        raise CodecError(
            f"broker {broker_name!r} stored a message but its answer cannot be read: {error.message}"
        ) from error
    is_repeated = fields.get(REPEATED_FIELD) == "true"
    unique = fields.get("transactionId", "")
    return SendResult(
        _STATUS[response.code],
        # Stored by an earlier run of the program, a message has that one's id.
        unique if is_repeated and unique else msg_id,
        queue,
        queue_offset,
        fields.get(DURABILITY_FIELD, ""),
        fields.get("msgId", ""),
        unique,
        fields.get("MSG_REGION", ""),
        fields.get("TRACE_ON", "true") != "false",
        attempts,
        fields.get("recallHandle", ""),
        is_repeated,
    )
