"""Pushing, carried out: reads for tasks that have room, calls clients, and tells `PushState` what came of it.

    wake      a message arrived, an answer came, a task was resumed: tasks that are ready get one read each, in slices
    deliver   what a pull would be answered is sent over the connection that the client opened (9046); never over one
              that the broker would have to open
    answer    commits the group's offset where pulls commit it, so that its lag is what it is for everybody
    tick      what nobody answered goes to the timeout queue, then to the dead letters; clients are pinged (9047)
    end       whatever makes a pull refused makes a subscription end: the client is told why, and may ask again

A subscription is checked again before every read, as each pull is: topics go, rights are withdrawn, masters are
deposed. Owned by the event loop, except `on_arrival`, which the store calls from any thread. Runs while this broker
is master.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock._hot.queues import QueueState
from penstock.broker.offsets import ConsumerOffsets
from penstock.broker.options import BrokerOptions
from penstock.broker.partition_leases import PartitionLeases
from penstock.broker.processors.pull import PullProcessor
from penstock.broker.push_state import PushRules, PushState
from penstock.broker.push_tasks import ClientState, Place, PushClient, PushTask, Sent, TaskState, Window
from penstock.errors import FieldError, PenstockError, RemotingError, RequestError
from penstock.protocol.bodies.balance import HOLDER_FIELD
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.push import (
    PushDeliverRequestHeader,
    PushDeliverResponseHeader,
    PushPingRequestHeader,
)
from penstock.remoting import Connection
from penstock.runtime import Clock
from penstock.store import GetResult, MessageStore

_LOG = logging.getLogger("penstock.broker")
# How long tasks are served in one go; then others have their turn.
SLICE_MS = 20
TICK_MAX_MS, TICK_MIN_MS = 250, 10
REASON_MAX = 500
# What a connection is known by.
_CLIENT = "push_client"


@dataclass(frozen=True, slots=True)
class Subscribed:
    """What a task was asked for with, and whether who asked may still have it."""

    command: Command
    may: Callable[[], bool]

    @property
    def holder(self) -> str | None:
        """As whom the queue is leased, if it is."""
        return self.command.fields.get(HOLDER_FIELD)


class PushService:
    """See the module's text. `start` and `stop` as often as the broker becomes master and stops being it."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        pulls: PullProcessor,
        offsets: ConsumerOffsets,
        leases: PartitionLeases,
        clock: Clock,
    ) -> None:
        self._options = options
        self._store = store
        self._pulls = pulls
        self._offsets = offsets
        self._leases = leases
        self._clock = clock
        self.state = PushState(push_rules(options))
        # Tasks that are looked at again with the next tick: their peer has to read first.
        self.clogged: dict[PushTask, None] = {}
        self._arrived: deque[tuple[bytes, int]] = deque()
        self._is_noting = self._is_pumping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._timer: asyncio.TimerHandle | None = None
        tick_ms = min(options.push_answer_timeout_ms, options.push_ping_interval_ms) // 4
        self._tick_s = max(TICK_MIN_MS, min(tick_ms, TICK_MAX_MS)) / 1000
        store.on_arrival(self.on_arrival)
        offsets.on_reset.append(lambda topic, queue_id: self._note((topic.encode(), queue_id)))

    # -- life ------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self._loop is not None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()

    def stop(self) -> None:
        """Not master any more, or at the end: every subscription is over, and every client told."""
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for client in list(self.state.clients.values()):
            for task in list(client.tasks.values()):
                self.finish(
                    task, ResponseCode.SERVICE_NOT_AVAILABLE, "this broker stops, or is not the master"
                )
            self.state.close(client)
        self.clogged.clear()

    def closed(self, connection: Connection) -> None:
        """A connection is gone."""
        client = connection.attributes.get(_CLIENT)
        if isinstance(client, PushClient):
            self.state.lost(client, connection, self._clock.monotonic_ms())

    # -- what clients ask ------------------------------------------------------------------------------------

    def client_of(self, connection: Connection) -> PushClient | None:
        """Who registered over a connection, and is not closed or registered over another since."""
        client = connection.attributes.get(_CLIENT)
        if isinstance(client, PushClient) and client.link is connection:
            return None if client.state is ClientState.CLOSED else client
        return None

    def register(self, connection: Connection, name: str) -> PushClient:
        now_ms = self._clock.monotonic_ms()
        known = self.state.clients.get(name)
        if known is not None and known.link is not connection:
            # If anybody is still there it is a second client of that name, or one that dialled twice.
            for task in known.tasks.values():
                self._tell_end(
                    task, ResponseCode.NO_PERMISSION, "the client registered over another connection"
                )
        client = self.state.register(name, connection, now_ms)
        self._hang_up()
        connection.attributes[_CLIENT] = client
        if self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(self._tick_s, self._tick)
        self.pump_soon()
        return client

    def subscribe(
        self, client: PushClient, place: Place, offset: int, window: Window, wanted: Subscribed
    ) -> PushTask:
        """Begin to deliver a queue; the request was checked. Raises RequestError if somebody else has the queue."""
        now_ms = self._clock.monotonic_ms()
        self._drop_leaseless(place, wanted)
        task, before = self.state.subscribe(client, place, offset, window, now_ms, wanted)
        if before is not None and before.client is not client:
            why = f"the queue was taken over by {client.name[:200]}"
            self._tell_end(before, ResponseCode.NO_PERMISSION, why)
        self.pump_soon()
        return task

    def _drop_leaseless(self, place: Place, wanted: Subscribed) -> None:
        """Where queues are leased, whoever holds the lease need not wait until the one before it is found dead."""
        before, holder = self.state.tasks.get(place), wanted.holder
        if before is None or holder is None or before.request.holder == holder:
            return
        if self._leases.holder(place.group, place.topic, place.queue_id) == holder:
            self.finish(before, ResponseCode.NO_PERMISSION, f"the queue is leased to {holder[:200]}")

    def finish(self, task: PushTask, code: int, reason: str, offset: int = -1) -> None:
        """A subscription is over, and its client is told why."""
        self.state.end(task, self._clock.monotonic_ms())
        self._tell_end(task, code, reason, offset)

    def resume(self, tasks: list[PushTask]) -> list[tuple[PushTask, TaskState, bool]]:
        found = self.state.resume(tasks, self._clock.monotonic_ms())
        self.pump_soon()
        return found

    def _tell_end(self, task: PushTask, code: int, reason: str, offset: int = -1) -> None:
        link = task.client.link
        if isinstance(link, Connection) and link.is_open:
            header = self._header(task, task.taken, offset, int(code), reason[:REASON_MAX])
            link.send(Command(RequestCode.PUSH_DELIVER, header.encode()))

    def _header(
        self, task: PushTask, start: int, end: int, status: int = 0, reason: str | None = None
    ) -> PushDeliverRequestHeader:
        place = task.place
        return PushDeliverRequestHeader(
            consumer_group=place.group,
            topic=place.topic,
            queue_id=place.queue_id,
            queue_offset=start,
            next_begin_offset=end,
            status=status,
            reason=reason,
            broker_name=self._options.broker_name,
        )

    # -- waking ----------------------------------------------------------------------------------------------

    def on_arrival(self, queues: Sequence[QueueState]) -> None:
        """Messages of these queues became visible; any thread."""
        if self.state.by_queue:
            for queue in queues:
                self._note((queue.topic, queue.queue_id))

    def _note(self, key: tuple[bytes, int]) -> None:
        loop = self._loop
        if loop is None or key not in self.state.by_queue:
            return
        self._arrived.append(key)
        if not self._is_noting:
            self._is_noting = True
            if threading.get_ident() == self._loop_thread:
                loop.call_soon(self._wake)
            else:
                loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        # First the mark, then the queues: whoever notes one after this asks for another round.
        self._is_noting = False
        while self._arrived:
            for task in list(self.state.by_queue.get(self._arrived.popleft(), ())):
                self.state.look_again(task)
        self.pump_soon()

    def pump_soon(self) -> None:
        """Serve tasks that are ready, after what is being handled."""
        if not self._is_pumping and self.state.ready and self._loop is not None:
            self._is_pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_pumping = False
        deadline_ms = self._clock.monotonic_ms() + SLICE_MS
        while self._loop is not None and self._clock.monotonic_ms() < deadline_ms:
            task = self.state.take_ready()
            if task is None:
                return
            try:
                self._serve(task)
            except PenstockError as error:
                self.finish(task, error.code, str(error))
            except Exception as error:
                _LOG.exception("pushing %s failed; its subscription ends", task.place)
                self.finish(task, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        self.pump_soon()

    # -- delivering ------------------------------------------------------------------------------------------

    def _serve(self, task: PushTask) -> None:
        """One read for a task, and one delivery if it found something. Raises what a pull would be refused with."""
        room, link = task.room(), task.client.link
        if room is None or not isinstance(link, Connection):
            return
        if link.is_clogged:
            self.clogged[task] = None
            return
        wanted: Subscribed = task.request
        if not wanted.may():
            raise RequestError(ResponseCode.NO_PERMISSION, "the permission was withdrawn", "ask an admin")
        pull = self._pulls.admit(wanted.command, task.read_offset)
        code, result = self._pulls.read(pull, room.messages, room.bytes)
        if code == ResponseCode.SUCCESS:
            self._found(task, link, result)
        elif code == ResponseCode.PULL_OFFSET_MOVED:
            self.finish(task, code, "the queue goes on elsewhere", result.next_offset)
        else:
            self._nothing(task, link, result)

    def _found(self, task: PushTask, link: Connection, result: GetResult) -> None:
        if task.fits(len(result.data)):
            self._send(task, link, result.next_offset, result.count, result.data)

    def _nothing(self, task: PushTask, link: Connection, result: GetResult) -> None:
        """Nothing here, or nothing that the filter wants: go on behind it, or wait for more. The client is told of
        what was passed over when there is no more, so that the group's offset follows."""
        before, place = task.read_offset, task.place
        task.read_offset = max(before, result.next_offset)
        end = self._store.max_offset(place.topic, place.queue_id)
        if end > task.read_offset:
            # There is more behind it, or another thread has made some visible; else it is not readable yet.
            if task.read_offset > before or end > result.max_offset:
                self.state.look_again(task)
            else:
                self.clogged[task] = None
            return
        task.is_at_end = True
        if task.read_offset > task.next_offset:
            self._send(task, link, task.read_offset, 0, b"")

    def _send(self, task: PushTask, link: Connection, end: int, count: int, data: bytes | bytearray) -> None:
        is_at_end = task.is_at_end
        one = self.state.sent(task, end, count, len(data), self._clock.monotonic_ms())
        if is_at_end:
            self.state.ready.pop(task, None)
        command = Command(RequestCode.PUSH_DELIVER, self._header(task, one.start, end).encode(), data)

        def respond(outcome: Command | RemotingError) -> None:
            self._answered(task, one, outcome)

        # Late answers count: the connection waits for them longer than the task does.
        waits_ms = self._options.push_answer_timeout_ms * (self._options.push_resends + 2)
        link.request(command, respond, waits_ms)

    def _answered(self, task: PushTask, one: Sent, outcome: Command | RemotingError) -> None:
        """Never raises: it is called by the connection. What did not come at all, the tick and `closed` know."""
        if not isinstance(outcome, Command):
            return
        now_ms = self._clock.monotonic_ms()
        answer = None
        try:
            if outcome.code == ResponseCode.SUCCESS:
                answer = PushDeliverResponseHeader.decode(outcome.fields)
        except FieldError as error:
            _LOG.info("%s answers what is no answer: %s", task.client.name, error)
        if outcome.code == ResponseCode.CONSUMER_NOT_ONLINE and one.number in task.sent:
            self.state.end(task, now_ms)  # nobody there wants the queue any more: others may
        elif answer is None:
            self.state.refused(task, one, now_ms)
        else:
            done = self.state.answered(
                task, one, answer.next_offset, answer.commit_offset, now_ms, hold=answer.hold
            )
            if done is not None:
                self._commit(task, done)
        self.pump_soon()

    def _commit(self, task: PushTask, offset: int) -> None:
        """As a pull commits: where nobody else has the queue, and no reset waits."""
        place = task.place
        if self._options.is_slave:
            return
        try:
            self._leases.check(place.group, place.topic, place.queue_id, task.request.holder)
            self._offsets.commit(place.group, place.topic, place.queue_id, offset)
        except PenstockError as error:
            self.finish(task, error.code, str(error))

    # -- time ------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now_ms = self._clock.monotonic_ms()
        pings = self.state.tick(now_ms)
        self._hang_up()
        for client in pings:
            self._ping(client)
        clogged, self.clogged = self.clogged, {}
        for task in clogged:
            if task.state is not TaskState.ENDED:
                self.state.look_again(task)
        self.pump_soon()
        self._timer = None
        if self.state.clients and self._loop is not None:
            self._timer = self._loop.call_later(self._tick_s, self._tick)

    def _hang_up(self) -> None:
        """A client that was forgotten and is still connected learns it so, and begins anew if it lives."""
        forgotten, self.state.forgotten = self.state.forgotten, []
        for client in forgotten:
            if isinstance(client.link, Connection):
                client.link.close("nothing was heard of its client for long")

    def _ping(self, client: PushClient) -> None:
        link = client.link
        if not isinstance(link, Connection):
            return
        for task in client.tasks.values():
            # Should an arrival ever be missed.
            if task.is_at_end and task.state is TaskState.SENDING:
                self.state.look_again(task)
        header = PushPingRequestHeader(parked=client.parked)

        def respond(outcome: Command | RemotingError) -> None:
            if (
                isinstance(outcome, Command)
                and client.link is link
                and client.state is not ClientState.CLOSED
            ):
                self.state.heard(client, self._clock.monotonic_ms())

        waits_ms = self._options.push_ping_interval_ms * (self._options.push_ping_misses + 1)
        link.request(Command(RequestCode.PUSH_PING, header.encode()), respond, waits_ms)

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options; the rules stay as they were at the start."""
        self._options = options


def push_rules(options: BrokerOptions) -> PushRules:
    """The options that are rules of the state."""
    return PushRules(
        answer_timeout_ms=options.push_answer_timeout_ms,
        resends=options.push_resends,
        ping_interval_ms=options.push_ping_interval_ms,
        ping_misses=options.push_ping_misses,
        dead_keep_ms=options.push_dead_keep_ms,
        clients_max=options.push_clients_max,
        client_subscriptions_max=options.push_client_subscriptions_max,
        subscriptions_max=options.push_subscriptions_max,
    )
