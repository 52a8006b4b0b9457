"""`penstock produce TOPIC`: every line of standard input becomes a message.

Lines are sent as they come and many are under way at once; the outcome is told in the order of the lines. The
first one that fails ends the reading: what was sent before it is finished and counted, nothing after it is sent.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

import click

from penstock.cli.clients import Cluster, client_options, echo_json, reaching
from penstock.cli.complaints import awaiting, note
from penstock.cli.option_types import MomentType, NumberType, PairType, SpanType
from penstock.cli.signals import read_line

if TYPE_CHECKING:
    from concurrent.futures import Future

    from penstock.client.producer import Producer
    from penstock.client.results import SendResult

BATCH_MAX = 10_000
LINE_BYTES_MAX = 64 << 20
UNANSWERED_MAX = 8_192
DURABILITIES = ("memory", "flushed", "replicated")


@click.command()
@click.argument("topic")
@click.option("--key", metavar="K", default="", help="Key of every message; several are separated by spaces.")
@click.option("--tag", metavar="T", default="", help="Tag of every message.")
@click.option(
    "--property", "properties", type=PairType(), multiple=True, help="Property of every message; repeatable."
)
@click.option(
    "--batch",
    type=NumberType(1, BATCH_MAX),
    help="Send so many lines together; without it, whatever came while the last ones were under way.",
)
@click.option(
    "--queue-key", metavar="K", default="", help="Keep the lines in order: equal keys go to one queue."
)
@click.option("--by-key", is_flag=True, help="Send to the queue of --key, where `message value` finds it.")
@click.option(
    "--durability", type=click.Choice(DURABILITIES), help="What must be reached before a line counts as sent."
)
@click.option(
    "--idempotent",
    is_flag=True,
    help="Store each line once, also where an answer is lost and it is sent again.",
)
@click.option("--delay", type=SpanType(), help="Deliver every message so long after it was sent.")
@click.option("--deliver-at", type=MomentType(), help="Deliver every message at this time.")
@client_options
def produce(
    topic: str,
    key: str,
    tag: str,
    properties: Sequence[tuple[str, str]],
    batch: int | None,
    queue_key: str,
    by_key: bool,
    durability: str | None,
    idempotent: bool,
    delay: int | None,
    deliver_at: int | None,
    cluster: Cluster,
    as_json: bool,
) -> int:
    """Send the lines of standard input to TOPIC.

    Empty lines are left out. With --json every message is told in a line, with its id and place, and with the
    handle by which it can be recalled if it has to wait.
    """
    if delay is not None and deliver_at is not None:
        raise click.UsageError("Use either --delay or --deliver-at.", click.get_current_context())
    if batch and (delay is not None or deliver_at is not None):
        raise click.UsageError("Messages that wait for their time cannot be sent with --batch.")
    if by_key and not key:
        raise click.UsageError("--by-key needs --key", click.get_current_context())
    if by_key and queue_key:
        raise click.UsageError("Use either --by-key or --queue-key.", click.get_current_context())
    from penstock.client.producer import Producer

    parts: dict[str, Any] = {"tag": tag, "keys": key, "properties": dict(properties)}
    if delay is not None:
        parts["delay"] = delay
    if deliver_at is not None:
        parts["deliver_at"] = deliver_at / 1000
    bodies = _Lines(sys.stdin.buffer)
    signing: Any = cluster.signing()
    with reaching(is_signed=bool(signing)):
        producer = Producer(
            cluster.address,
            "penstock-cli",
            tls=cluster.tls(),
            **signing,
            send_timeout_ms=cluster.timeout_ms,
            call_timeout_ms=cluster.timeout_ms,
            partition_by_key=by_key,
            durability=durability or "",
            idempotent=idempotent,
        )
        with awaiting(f"waiting for {cluster.address}"):
            producer.start()
        with producer, _progress(as_json) as told:
            work = _Sending(producer, as_json, told)
            if batch:
                work.run(_batches(producer, topic, bodies, batch, queue_key, parts))
            else:
                work.run(producer.send_async(topic, body, queue_key=queue_key, **parts) for body in bodies)
        work.summarise(topic, bodies.left_out, as_json)
        if work.failure is not None:
            raise work.failure
    return 0


class _Lines:
    """The bodies in a stream; counts what it leaves out."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.left_out = 0
        if stream.isatty():
            note("Every line is a message; Ctrl-D ends.")

    def __iter__(self) -> Iterator[bytes]:
        # A line without an end must not fill the memory: a part of it is too large for a message as well.
        for line in iter(lambda: read_line(self._stream, LINE_BYTES_MAX), b""):
            body = line.removesuffix(b"\n").removesuffix(b"\r")
            if body:
                yield body
            else:
                self.left_out += 1


def _batches(
    producer: Producer, topic: str, bodies: Iterable[bytes], size: int, queue_key: str, parts: dict[str, Any]
) -> Iterator[Future[Sequence[SendResult]]]:
    """One frame for every `size` lines."""
    from penstock.message import Message, PropertyName

    properties = dict(parts["properties"])
    if parts["tag"]:
        properties[PropertyName.TAGS] = parts["tag"]
    if parts["keys"]:
        properties[PropertyName.KEYS] = parts["keys"]
    waiting = iter(bodies)
    while chunk := [Message(topic, body, properties) for body in islice(waiting, size)]:
        yield producer.send_batch_async(chunk, queue_key=queue_key)


class _Sending:
    """Futures of sends, told in their order."""

    def __init__(self, producer: Producer, as_json: bool, told: Callable[[int], None]) -> None:
        self._producer = producer
        self._as_json = as_json
        self._told = told
        self._unanswered: deque[Future[Any]] = deque()
        self._started = time.perf_counter()
        self.sent = 0
        self.weak = 0
        self.failure: BaseException | None = None

    def run(self, sends: Iterable[Future[Any]]) -> None:
        from penstock.errors import PenstockError

        # Someone who types wants to see each line go; a pipe wants speed.
        unanswered_max = 0 if sys.stdin.isatty() else UNANSWERED_MAX
        try:
            for future in sends:
                self._unanswered.append(future)
                while len(self._unanswered) > unanswered_max or (
                    self._unanswered and self._unanswered[0].done()
                ):
                    self._take(self._unanswered.popleft())
        except (PenstockError, KeyboardInterrupt) as error:
            self.failure = error
        while self._unanswered:
            try:
                self._take(self._unanswered.popleft())
            except PenstockError as error:
                self.failure = self.failure or error

    def _take(self, future: Future[Any]) -> None:
        outcome = future.result()
        results = [outcome] if hasattr(outcome, "msg_id") else outcome
        for result in results:
            self.sent += 1
            self.weak += not result.is_ok
            if self._as_json:
                echo_json(result_json(result), lines=True)
        self._told(self.sent)

    def summarise(self, topic: str, left_out: int, as_json: bool) -> None:
        from penstock.cli.console import count_text
        from penstock.cli.escaping import one_line

        seconds = max(time.perf_counter() - self._started, 0.000_001)
        text = f"{self.sent:,} sent to {topic} in {seconds:.2f} s, {int(self.sent / seconds):,} messages/s"
        if left_out:
            text += f"; {count_text(left_out, 'empty line')} left out"
        if self.weak:
            text += f"; {self.weak:,} of them less safe than configured: see --json"
        click.echo(one_line(text), err=as_json)


def result_json(result: SendResult) -> dict[str, object]:
    told: dict[str, object] = {
        "message_id": result.msg_id,
        "topic": result.queue.topic,
        "broker": result.queue.broker_name,
        "queue": result.queue.queue_id,
        "offset": result.queue_offset,
        "status": result.status.value,
        "durability": result.durability,
        "offset_message_id": result.offset_msg_id,
    }
    if result.recall_handle:
        told["recall_handle"] = result.recall_handle
    return told


def _progress(as_json: bool) -> AbstractContextManager[Callable[[int], None]]:
    """Counts on a terminal; not while someone types there."""
    if not sys.stderr.isatty() or sys.stdin.isatty():
        return nullcontext(lambda sent: None)
    from penstock.cli.console import counting

    return counting("Sending", printing=as_json)
