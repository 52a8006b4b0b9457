"""Pushing: register (9040), subscribe (9041), unsubscribe (9042), close (9043), resume (9044), list (9045).

Rules. A client is called over the connection that it registered with, and that connection speaks for it: nobody can
subscribe, unsubscribe or close for another. Where users are asked who they are, a name belongs to the user who
registered it. Everything from the wire is checked before anything is changed. Owned by the event loop.
"""

from __future__ import annotations

from penstock.broker.offsets import ConsumerOffsets
from penstock.broker.options import BrokerOptions
from penstock.broker.processors.heartbeat import check_client_id
from penstock.broker.processors.pull import PullProcessor
from penstock.broker.push_service import PushService, Subscribed
from penstock.broker.push_tasks import Place, PushClient, PushTask, TaskState, Window
from penstock.errors import RequestError
from penstock.protocol.bodies.push import (
    PushClientInfo,
    PushListBody,
    PushResumed,
    PushResumedBody,
    PushSubscriptionInfo,
)
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.push import (
    PushQueueRequestHeader,
    PushRegisterRequestHeader,
    PushRegisterResponseHeader,
    PushResumeRequestHeader,
    PushSubscribeResponseHeader,
    PushSubscribeWindow,
)
from penstock.remoting import Connection, ProcessorTable
from penstock.runtime import Clock
from penstock.security import Guard
from penstock.store import MessageStore

# As an offset: where the group is, or the first message there is if it is nowhere.
COMMITTED = -1
# Subscriptions in one listing, and tasks in one answer to a resume.
LISTED_MAX = 5_000


class PushProcessor:
    """Codes 9040 to 9045."""

    def __init__(
        self,
        options: BrokerOptions,
        service: PushService,
        pulls: PullProcessor,
        offsets: ConsumerOffsets,
        store: MessageStore,
        clock: Clock,
        guard: Guard | None,
    ) -> None:
        self._options = options
        self.service = service
        self._pulls = pulls
        self._offsets = offsets
        self._store = store
        self._clock = clock
        self._guard = guard

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self._options = options
        self.service.reconfigure(options)

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.PUSH_REGISTER, self.handle_register)
        table.register(RequestCode.PUSH_SUBSCRIBE, self.handle_subscribe)
        table.register(RequestCode.PUSH_UNSUBSCRIBE, self.handle_unsubscribe)
        table.register(RequestCode.PUSH_CLOSE, self.handle_close)
        table.register(RequestCode.PUSH_RESUME, self.handle_resume)
        table.register(RequestCode.PUSH_LIST, self.handle_list)

    # -- clients ---------------------------------------------------------------------------------------------

    def handle_register(self, connection: Connection, command: Command) -> Command:
        header = PushRegisterRequestHeader.decode(command.fields)
        check_client_id(header.client_id)
        self._check_runs()
        self._check_name(connection, header.client_id)
        client = self.service.register(connection, header.client_id)
        client.user = "" if self._guard is None else self._guard.sender_name
        options = self._options
        answer = PushRegisterResponseHeader(
            answer_timeout_ms=options.push_answer_timeout_ms,
            ping_interval_ms=options.push_ping_interval_ms,
            ping_misses=options.push_ping_misses,
            resumed=len(client.tasks),
        )
        return command.answer(fields=answer.encode())

    def _check_runs(self) -> None:
        if not self.service.is_running or self._options.is_slave:
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"{self._options.broker_name} with id {self._options.broker_id} is not the master",
                "register with the master, which the route names",
            )

    def _check_name(self, connection: Connection, name: str) -> None:
        mine = self.service.client_of(connection)
        if mine is not None and mine.name != name:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"this connection is registered as {mine.name[:200]}",
                "one connection is one client; close it first",
            )
        known = self.service.state.clients.get(name)
        if known is None or self._guard is None or known.user == self._guard.sender_name:
            return
        if known.link is None:
            self.service.state.close(known)  # the name is free; what was subscribed to under it is not
        else:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"client {name[:200]} is registered by another user",
                "use another instance name",
            )

    def handle_close(self, connection: Connection, command: Command) -> Command:
        client = self.service.client_of(connection)
        if client is not None:
            self.service.state.close(client)
        return command.answer()

    def _client(self, connection: Connection) -> PushClient:
        client = self.service.client_of(connection)
        if client is None:
            raise RequestError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                "no client is registered over this connection",
                "register it first (9040)",
            )
        return client

    # -- subscriptions ---------------------------------------------------------------------------------------

    def handle_subscribe(self, connection: Connection, command: Command) -> Command:
        self._check_runs()
        client = self._client(connection)
        asked = PushSubscribeWindow.decode(command.fields)
        pull = self._pulls.admit(command)
        header = pull.header
        place = Place(pull.group.name, header.topic, header.queue_id)
        offset = self._start(place, header.queue_offset)
        may = (lambda: True) if self._guard is None else self._guard.standing(command)
        window = self._window(asked)
        task = self.service.subscribe(client, place, offset, window, Subscribed(command, may))
        answer = PushSubscribeResponseHeader(
            next_begin_offset=task.next_offset,
            window_messages=window.messages,
            window_bytes=window.bytes,
        )
        return command.answer(fields=answer.encode())

    def _start(self, place: Place, offset: int) -> int:
        if offset < COMMITTED:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"offset {offset} is negative",
                "name an offset of the queue, or -1 for the committed one",
            )
        if offset == COMMITTED:
            offset = self._offsets.query(place.group, place.topic, place.queue_id)
        if offset == COMMITTED:
            offset = self._store.min_offset(place.topic, place.queue_id)
        return max(offset, 0)

    def _window(self, asked: PushSubscribeWindow) -> Window:
        options = self._options
        if asked.window_messages < 0 or asked.window_bytes < 0:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"a window of {asked.window_messages} messages and {asked.window_bytes} bytes",
                "ask for at least 1, or 0 for as much as the broker allows",
            )
        return Window(
            min(asked.window_messages or options.push_window_messages, options.push_window_messages),
            min(asked.window_bytes or options.push_window_bytes, options.push_window_bytes),
        )

    def handle_unsubscribe(self, connection: Connection, command: Command) -> Command:
        header = PushQueueRequestHeader.decode(command.fields)
        client = self._client(connection)
        task = client.tasks.get(Place(header.consumer_group, header.topic, header.queue_id))
        if task is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"client {client.name[:200]} has no such subscription",
                "nothing is left to do",
            )
        self.service.state.end(task, self._clock.monotonic_ms())
        return command.answer(fields={"nextOffset": str(task.taken)})

    # -- resume ----------------------------------------------------------------------------------------------

    def handle_resume(self, connection: Connection, command: Command) -> Command:
        header = PushResumeRequestHeader.decode(command.fields)
        sender = self.service.client_of(connection)
        if sender is not None:
            self.service.state.heard(sender, self._clock.monotonic_ms())  # who resumes itself is not dead
        tasks = [task for task in self._candidates(header) if _is_meant(task, header)]
        found = self.service.resume(tasks[:LISTED_MAX])
        body = PushResumedBody(tasks=tuple(_resumed(*one) for one in found))
        return command.answer(body=body.encode())

    def _candidates(self, header: PushResumeRequestHeader) -> list[PushTask]:
        """Not all of them where a queue or a client is named: consumers resume often."""
        state = self.service.state
        if header.topic is not None and header.queue_id is not None:
            task = state.tasks.get(Place(header.consumer_group, header.topic, header.queue_id))
            return [] if task is None else [task]
        if header.client_id is not None:
            client = state.clients.get(header.client_id)
            return [] if client is None else list(client.tasks.values())
        return list(state.tasks.values())

    # -- looking ---------------------------------------------------------------------------------------------

    def handle_list(self, connection: Connection, command: Command) -> Command:
        group, state, now_ms = (
            command.text_or("consumerGroup"),
            self.service.state,
            self._clock.monotonic_ms(),
        )
        clients: list[PushClientInfo] = []
        room, left_off = LISTED_MAX, 0
        for client in state.clients.values():
            tasks = [task for task in client.tasks.values() if not group or task.place.group == group]
            if group and not tasks:
                continue
            if room <= 0:
                left_off += max(len(tasks), 1)
                continue
            shown = tasks[:room]
            room -= max(len(shown), 1)
            left_off += len(tasks) - len(shown)
            clients.append(_client_info(client, shown, now_ms))
        body = PushListBody(
            clients=tuple(clients),
            timeout_queue=_count(state.timeouts, group),
            dead_letter_queue=_count(state.dead_letters, group),
            left_off=left_off,
        )
        return command.answer(body=body.encode())


def _is_meant(task: PushTask, header: PushResumeRequestHeader) -> bool:
    place = task.place
    return (
        place.group == header.consumer_group
        and header.client_id in (None, task.client.name)
        and header.topic in (None, place.topic)
        and header.queue_id in (None, place.queue_id)
    )


def _resumed(task: PushTask, was: TaskState, goes_on: bool) -> PushResumed:
    place = task.place
    return PushResumed(
        client=task.client.name,
        group=place.group,
        topic=place.topic,
        queue_id=place.queue_id,
        was=str(was),
        goes_on=goes_on,
        offset=task.taken,
        reason="" if goes_on else f"the client is {task.client.state}: it has to come back first",
    )


def _count(tasks: dict[PushTask, None], group: str) -> int:
    return sum(not group or task.place.group == group for task in tasks)


def _client_info(client: PushClient, tasks: list[PushTask], now_ms: int) -> PushClientInfo:
    link = client.link
    return PushClientInfo(
        name=client.name,
        address=str(link.peer) if isinstance(link, Connection) else "",
        state=str(client.state),
        since_ms=max(now_ms - client.since_ms, 0),
        missed_pings=client.missed,
        subscriptions=tuple(_subscription_info(task, now_ms) for task in tasks),
    )


def _subscription_info(task: PushTask, now_ms: int) -> PushSubscriptionInfo:
    place = task.place
    return PushSubscriptionInfo(
        group=place.group,
        topic=place.topic,
        queue_id=place.queue_id,
        state=str(task.state),
        since_ms=max(now_ms - task.since_ms, 0),
        sent_offset=task.next_offset,
        taken_offset=task.taken,
        done_offset=task.done,
        window_messages=task.window.messages,
        window_bytes=task.window.bytes,
        unanswered=task.messages_out or task.unanswered,
        unanswered_bytes=task.bytes_out,
        resends=task.resends,
    )
