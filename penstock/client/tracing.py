"""Traces of producers and consumers on their way to the trace topic.

    sends, deliveries --note--> waiting records (at most 4096) --every second--> messages of the trace topic

Rules: nothing that is traced ever waits for its trace. Where records come faster than they can be written, the newest
are dropped and counted; a trace message that fails is counted and not sent again. Notes may come from any thread;
the rest belongs to the client's event loop. Whether a message is traced is its broker's to say (TRACE_ON).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from penstock.client.batching import Parcel
from penstock.client.handout import Report
from penstock.client.instance import ClientInstance
from penstock.client.received import ReceivedMessage
from penstock.client.results import Recalled, SendResult
from penstock.client.trace_records import (
    ConsumeCode,
    MessageKind,
    TraceKind,
    TraceRecord,
    encode,
)
from penstock.errors import PenstockError, ResponseError
from penstock.message import Message, PropertyName, decode_properties
from penstock.protocol.recall import RecallHandle

logger = logging.getLogger(__name__)
WAITING_MAX = 4_096
INTERVAL_S = 1.0
CLOSE_S = 3.0
# As RocketMQ's: larger bodies are parted.
BODY_CHARS_MAX = 128_000
# Keys of a trace message have to fit its properties, and each is an entry of the index.
KEYS_CHARS_MAX = 8_000
RECORDS_MAX = 100
REGION = "MSG_REGION"
# What RocketMQ's clients write where a broker has not said.
DEFAULT_REGION = "DefaultRegion"
TRACE_ON = "TRACE_ON"


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """What a trace says of the message whose transaction ends. `from_check`: the broker had to ask."""

    msg_id: str
    topic: str
    tag: str = ""
    keys: str = ""
    region: str = ""
    transaction_id: str = ""
    from_check: bool = False


class TraceSender(Protocol):
    """What writes trace messages: a producer that is not traced itself."""

    async def send(self, message: Message) -> SendResult: ...

    async def close(self, timeout_s: float = ...) -> None: ...


@dataclass(slots=True)
class TraceCounts:
    """What became of records."""

    written: int = 0
    dropped: int = 0
    failed: int = 0


class Tracing:
    """The traces of one producer or consumer. Made and closed in the loop."""

    def __init__(self, instance: ClientInstance, sender: TraceSender, group: str, topic: str) -> None:
        self.counts = TraceCounts()
        self._instance = instance
        self._sender = sender
        self._group = group
        self._topic = topic
        self._clock = instance.runtime.clock
        self._waiting: deque[TraceRecord] = deque()
        self._wake = asyncio.Event()
        self._is_closing = False
        self._task = asyncio.ensure_future(self._run())

    # -- notes -----------------------------------------------------------------------------------------------

    def note(self, record: TraceRecord) -> None:
        """From any thread; never waits."""
        if len(self._waiting) >= WAITING_MAX:
            self.counts.dropped += 1
        else:
            self._waiting.append(record)

    def sent(
        self, parcel: Parcel, result: SendResult | None, error: PenstockError | None, cost_ms: int
    ) -> None:
        """Messages were stored, or were not."""
        if result is not None and not result.trace_on:
            return
        now_ms = self._clock.now_ms()
        host = self._instance.broker_address(result.queue.broker_name) if result is not None else None
        for item in parcel.items:
            if item.topic == self._topic:
                continue
            properties = decode_properties(item.properties)
            kind = MessageKind.NORMAL
            if item.is_half:
                kind = MessageKind.HALF
            elif properties.get(PropertyName.DELAY, "0") != "0":
                kind = MessageKind.DELAYED
            elif item.queue_key:
                kind = MessageKind.ORDERED
            self.note(
                TraceRecord(
                    TraceKind.PUB,
                    item.msg_id,
                    now_ms - cost_ms,
                    region=result.region_id if result is not None else "",
                    group=self._group,
                    topic=item.topic,
                    tag=properties.get(PropertyName.TAGS, ""),
                    keys=properties.get(PropertyName.KEYS, ""),
                    store_host=host or "",
                    body_size=len(item.body),
                    cost_ms=cost_ms,
                    message_kind=kind,
                    offset_msg_id=result.offset_msg_id
                    if result is not None and len(parcel.items) == 1
                    else "",
                    is_success=error is None,
                    client_host=self._instance.client_id.partition("@")[0],
                )
            )

    def transaction_ended(self, end: TransactionEnd, broker_name: str, state: str) -> None:
        """A program has decided how a transaction ends; it is being told to the broker."""
        self.note(
            TraceRecord(
                TraceKind.END_TRANSACTION,
                end.msg_id,
                self._clock.now_ms(),
                region=end.region or DEFAULT_REGION,
                group=self._group,
                topic=end.topic,
                tag=end.tag,
                keys=end.keys,
                store_host=self._instance.broker_address(broker_name) or "",
                message_kind=MessageKind.COMMITTED,
                transaction_id=end.transaction_id,
                state=state,
                from_check=end.from_check,
            )
        )

    async def recall(self, handle: str, ask: Callable[[str], Awaitable[Recalled]]) -> Recalled:
        """Have a message recalled, and note how that ended."""
        found = RecallHandle.decode(handle)
        region = is_success = None
        try:
            recalled = await ask(handle)
            region, is_success = recalled.region, True
            return recalled
        except ResponseError:
            is_success = False
            raise
        finally:
            if is_success is not None:  # else no broker has answered, and nobody knows
                self.note(
                    TraceRecord(
                        *(TraceKind.RECALL, found.unique, self._clock.now_ms(), region or DEFAULT_REGION),
                        *(self._group, found.topic),
                        is_success=is_success,
                    )
                )

    def begun(self, message: ReceivedMessage) -> None:
        """A message was given to somebody. From any thread."""
        properties = message.properties
        if not self._is_traced(message):
            return
        self.note(
            TraceRecord(
                TraceKind.SUB_BEFORE,
                message.msg_id,
                self._clock.now_ms(),
                region=properties.get(REGION, ""),
                group=self._group,
                keys=properties.get(PropertyName.KEYS, ""),
                request_id=self._request_id(message),
                tries=message.tries,
            )
        )

    def ended(self, report: Report) -> None:
        """Somebody is done with messages, well or not."""
        count = len(report.done) + len(report.failed)
        if not count:
            return
        cost_ms = round(report.spent_ms / count)
        for message in report.done:
            self._after(message, cost_ms, ConsumeCode.SUCCESS)
        for message, _ in report.failed:
            self._after(message, cost_ms, ConsumeCode.FAILED)

    def _after(self, message: ReceivedMessage, cost_ms: int, code: ConsumeCode) -> None:
        if not self._is_traced(message):
            return
        self.note(
            TraceRecord(
                TraceKind.SUB_AFTER,
                message.msg_id,
                self._clock.now_ms(),
                group=self._group,
                keys=message.properties.get(PropertyName.KEYS, ""),
                request_id=self._request_id(message),
                cost_ms=cost_ms,
                is_success=code is ConsumeCode.SUCCESS,
                code=code,
            )
        )

    def _is_traced(self, message: ReceivedMessage) -> bool:
        return message.topic != self._topic and message.properties.get(TRACE_ON) != "false"

    def _request_id(self, message: ReceivedMessage) -> str:
        """One delivery to this client: the same when it begins and when it ends, without remembering it."""
        text = f"{self._instance.client_id}/{self._group}/{message.offset_msg_id}/{message.tries}"
        return hashlib.sha256(text.encode()).hexdigest()[:32].upper()

    # -- writing ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._is_closing:
            try:
                async with asyncio.timeout(INTERVAL_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            await self.flush()

    async def flush(self) -> None:
        """Write what waits."""
        while self._waiting:
            some = [self._waiting.popleft() for _ in range(min(len(self._waiting), 4 * RECORDS_MAX))]
            await asyncio.gather(*(self._send(part) for part in parts_of(some)))

    async def _send(self, records: list[TraceRecord]) -> None:
        body = "".join(map(encode, records)).encode("utf-8", "replace")
        try:
            await self._sender.send(Message(self._topic, body, {PropertyName.KEYS: keys_of(records)}))
        except PenstockError as error:
            self.counts.failed += len(records)
            logger.info("%d traces of %s are lost: %s", len(records), self._group, error)
        else:
            self.counts.written += len(records)

    async def close(self) -> None:
        """Write what waits, for a moment."""
        self._is_closing = True
        self._wake.set()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._task
                await self.flush()
        except TimeoutError:
            self._task.cancel()
            self.counts.dropped += len(self._waiting)
        await self._sender.close(CLOSE_S)


def parts_of(records: Iterable[TraceRecord]) -> Iterator[list[TraceRecord]]:
    """Records that fit one trace message each time, in order."""
    part: list[TraceRecord] = []
    size = keys = 0
    for record in records:
        more, more_keys = len(encode(record)), len(record.msg_id) + len(record.keys) + 2
        if part and (
            size + more > BODY_CHARS_MAX or keys + more_keys > KEYS_CHARS_MAX or len(part) >= RECORDS_MAX
        ):
            yield part
            part, size, keys = [], 0, 0
        part.append(record)
        size += more
        keys += more_keys
    if part:
        yield part


def keys_of(records: Iterable[TraceRecord]) -> str:
    """What a trace message is found by: ids and keys of its messages, as many as fit; ids go first."""
    some = list(records)
    words = dict.fromkeys(record.msg_id for record in some if record.msg_id)
    words.update(dict.fromkeys(key for record in some for key in record.keys.split()))
    kept: list[str] = []
    size = 0
    for word in words:
        size += len(word) + 1
        if size > KEYS_CHARS_MAX:
            break
        kept.append("".join(c for c in word if c.isprintable()))
    return " ".join(kept) or "-"
