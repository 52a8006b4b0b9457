"""Pushing, decided: who is registered, who reads which queue, what may be sent, and what nobody has answered.

    client    (none) --register--> ALIVE --late answer or ping--> TIMEOUT --too many pings, or no connection--> DEAD
                                     ^                              |                                            |
                                     +----------- answers ----------+                                            |
                                     +----------- answers a ping, or registers again ----------------------------+
              any --close, or dead for long--> CLOSED: out of every subscription

    task      SENDING --no answer in time--> TIMEOUT (sent again) --again none--> PARKED --resume--> SENDING
                 ^  \\--"no room"--> HELD --resume--+                                ^
                 +----- answer -------- TIMEOUT ---+               client DEAD ------+

Rules. Deliveries of a task are in the order of the queue, each begins where the one before ended. An answer says up
to where the client has taken the queue; it counts, however late, and never for more than was sent. What is not
answered in time is forgotten with all that was sent after it, and read again from the first offset that was not
taken: so nothing is passed over, nothing overtakes, and a message comes twice only after a timeout or a new
connection. A queue has one consumer in a group; that of one who is dead is free. What is parked keeps its offset.

Events in, decisions out; no I/O, no clock of its own. Every table is limited (A14). Owned by the event loop.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.broker.push_tasks import ClientState, Place, PushClient, PushTask, Sent, TaskState, Window
from penstock.errors import RequestError
from penstock.protocol.codes import ResponseCode


@dataclass(frozen=True, slots=True)
class PushRules:
    """The numbers; each is an option of the broker, named `push_...`."""

    answer_timeout_ms: int
    resends: int
    ping_interval_ms: int
    ping_misses: int
    dead_keep_ms: int
    clients_max: int
    client_subscriptions_max: int
    subscriptions_max: int


class PushState:
    """See the module's text."""

    def __init__(self, rules: PushRules) -> None:
        self._rules = rules
        self.clients: dict[str, PushClient] = {}
        self.tasks: dict[Place, PushTask] = {}
        self.by_queue: dict[tuple[bytes, int], dict[PushTask, None]] = {}
        # Tasks that may have something to send, each once.
        self.ready: dict[PushTask, None] = {}
        # The seed's two queues, oldest first.
        self.timeouts: dict[PushTask, None] = {}
        self.dead_letters: dict[PushTask, None] = {}
        self._due: deque[tuple[int, PushTask, int]] = deque()
        self._numbers = itertools.count(1)
        # Clients that were closed without having asked for it; whoever calls them takes them out.
        self.forgotten: list[PushClient] = []

    # -- clients ---------------------------------------------------------------------------------------------

    def register(self, name: str, link: object, now_ms: int) -> PushClient:
        """A client says that it can be called. One that comes back over another connection may have lost what it had
        not done; its tasks go on from there. Raises RequestError if there are too many."""
        client = self.clients.get(name)
        if client is None:
            self._make_room()
            client = PushClient(name, link, now_ms, now_ms + self._rules.ping_interval_ms)
            self.clients[name] = client
            return client
        if client.link is not link:
            client.link = link
            for task in client.tasks.values():
                task.taken = task.done
                task.go_back()
                self._park(task, now_ms)
        self._heard(client, now_ms, is_back=True)
        self.resume(client.tasks.values(), now_ms)
        return client

    def _make_room(self) -> None:
        most = self._rules.clients_max
        if len(self.clients) < most:
            return
        dead = [client for client in self.clients.values() if client.state is ClientState.DEAD]
        if not dead:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"{len(self.clients)} clients are pushed to, which is the limit",
                "pull, or raise push_clients_max",
            )
        self._forget(min(dead, key=lambda client: client.since_ms))

    def _forget(self, client: PushClient) -> None:
        self.close(client)
        self.forgotten.append(client)

    def lost(self, client: PushClient, link: object, now_ms: int) -> None:
        """A connection is gone; nothing if the client has another by now."""
        if client.link is link:
            client.link = None
            if client.state is not ClientState.CLOSED:
                self._die(client, now_ms)

    def close(self, client: PushClient) -> None:
        """The client leaves: it is taken out of every subscription."""
        for task in list(client.tasks.values()):
            self._remove(task)
        client.state = ClientState.CLOSED
        if self.clients.get(client.name) is client:
            del self.clients[client.name]

    def heard(self, client: PushClient, now_ms: int) -> None:
        """A ping was answered, or the client asked for something: it lives. What is parked stays so until `resume`:
        the client may have lost it."""
        self._heard(client, now_ms, is_back=True)

    def _heard(self, client: PushClient, now_ms: int, *, is_back: bool = False) -> None:
        client.is_ping_open, client.missed = False, 0
        self._settle(client, now_ms, is_back=is_back)

    def _die(self, client: PushClient, now_ms: int) -> None:
        for task in client.tasks.values():
            if task.state is not TaskState.PARKED:
                task.go_back()
                self._park(task, now_ms)
        if client.state is not ClientState.DEAD:
            client.state, client.since_ms = ClientState.DEAD, now_ms

    def _settle(self, client: PushClient, now_ms: int, *, is_back: bool = False) -> None:
        """Its state, from what its pings and tasks say. Only a sign of life ends death."""
        if client.state is ClientState.CLOSED or (client.state is ClientState.DEAD and not is_back):
            return
        late = client.missed or any(task.state is TaskState.TIMEOUT for task in client.tasks.values())
        state = ClientState.TIMEOUT if late else ClientState.ALIVE
        if state is not client.state:
            client.state, client.since_ms = state, now_ms

    # -- subscriptions ---------------------------------------------------------------------------------------

    def subscribe(
        self,
        client: PushClient,
        place: Place,
        offset: int,
        window: Window,
        now_ms: int,
        request: Any = None,
    ) -> tuple[PushTask, PushTask | None]:
        """A task for this queue, and the one that it takes the place of. Raises RequestError with the reason."""
        before = self.tasks.get(place)
        if before is not None and before.client is not client and before.client.state is not ClientState.DEAD:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"queue {place.queue_id} of {place.topic} is taken for group {place.group} by "
                f"{before.client.name[:200]}, which is {before.client.state}",
                "one consumer of a group reads a queue; ask again when it has left or died",
            )
        self._check_room(client, before)
        self.heard(client, now_ms)
        if before is not None:
            self.end(before, now_ms)
        task = PushTask(place, client, window, request, now_ms, *_all_at(offset))
        self.tasks[place] = client.tasks[place] = task
        self.by_queue.setdefault((place.topic.encode(), place.queue_id), {})[task] = None
        self.ready[task] = None
        return task, before

    def _check_room(self, client: PushClient, before: PushTask | None) -> None:
        rules = self._rules
        mine = before is not None and before.client is client
        if len(client.tasks) - mine >= rules.client_subscriptions_max:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"client {client.name[:200]} has {len(client.tasks)} subscriptions, which is the limit",
                "unsubscribe from some, or raise push_client_subscriptions_max",
            )
        if len(self.tasks) - (before is not None) >= rules.subscriptions_max:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"{len(self.tasks)} queues are pushed, which is the limit",
                "pull, or raise push_subscriptions_max",
            )

    def end(self, task: PushTask, now_ms: int) -> None:
        """The task is over; the queue is free."""
        if task.state is not TaskState.ENDED:
            self._remove(task)
            self._settle(task.client, now_ms)

    def _remove(self, task: PushTask) -> None:
        task.state = TaskState.ENDED
        task.drop_all()
        key = (task.place.topic.encode(), task.place.queue_id)
        tasks = self.by_queue[key]
        del tasks[task], self.tasks[task.place], task.client.tasks[task.place]
        if not tasks:
            del self.by_queue[key]
        for queue in (self.ready, self.timeouts, self.dead_letters):
            queue.pop(task, None)

    # -- sending ---------------------------------------------------------------------------------------------

    def take_ready(self) -> PushTask | None:
        """A task that has room and may have something to send; the one that waits longest."""
        while self.ready:
            task = next(iter(self.ready))
            del self.ready[task]
            if task.room() is not None:
                return task
        return None

    def look_again(self, task: PushTask) -> None:
        """There may be something to send: messages came, or the peer has read."""
        task.is_at_end = False
        if task.room() is not None:
            self.ready[task] = None

    def sent(self, task: PushTask, end: int, count: int, size: int, now_ms: int) -> Sent:
        """What was read up to before `end` is on its way."""
        if task.state is TaskState.TIMEOUT:
            task.resends += 1
        due_ms = now_ms + self._rules.answer_timeout_ms
        one = Sent(next(self._numbers), task.next_offset, end, count, size, due_ms)
        task.add(one)
        task.next_offset = task.read_offset = end
        task.high = max(task.high, end)
        self._due.append((due_ms, task, one.number))
        if task.room() is not None:
            self.ready[task] = None
        return one

    # -- answers ---------------------------------------------------------------------------------------------

    def answered(
        self, task: PushTask, one: Sent, taken: int, done: int, now_ms: int, *, hold: bool
    ) -> int | None:
        """A client has answered a delivery: up to where it has taken the queue, and has done with it. The offset to
        commit; None if there is none."""
        self._heard(task.client, now_ms)
        if task.state is TaskState.ENDED:
            return None
        before, taken = task.taken, min(taken, task.high)
        is_current = task.drop(one.number)
        task.taken = max(before, taken)
        task.drop_taken()
        if is_current and task.taken < one.end:
            # It wants the rest again, and whatever was sent behind it.
            task.go_back()
            hold = hold or task.taken <= one.start
        task.next_offset = max(task.next_offset, task.taken)
        task.read_offset = max(task.read_offset, task.next_offset)
        self._follow(task, now_ms, has_moved=task.taken > before, hold=hold)
        if not task.done <= done <= task.taken:
            return None
        task.done = done
        return done

    def _follow(self, task: PushTask, now_ms: int, *, has_moved: bool, hold: bool) -> None:
        if task.state is TaskState.PARKED:
            return
        if hold:
            self._enter(task, TaskState.HELD, now_ms)
        elif task.state is TaskState.TIMEOUT and has_moved:
            self._enter(task, TaskState.SENDING, now_ms)
        if not task.is_at_end:
            self.look_again(task)

    def refused(self, task: PushTask, one: Sent, now_ms: int) -> None:
        """A client has answered a delivery with an error: as if it had not answered at all, but known at once."""
        self._heard(task.client, now_ms)
        if one.number in task.sent:
            self._give_up(task, now_ms)

    # -- time ------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> list[PushClient]:
        """Time has passed; whom to ping now."""
        while self._due and self._due[0][0] <= now_ms:
            _, task, number = self._due.popleft()
            if number in task.sent:
                self._give_up(task, now_ms)
        pings = []
        for client in list(self.clients.values()):
            if client.state is ClientState.DEAD and now_ms - client.since_ms >= self._rules.dead_keep_ms:
                self._forget(client)
            elif client.link is not None and now_ms >= client.ping_due_ms:
                self._ping(client, now_ms)
                pings.append(client)
        return pings

    def _ping(self, client: PushClient, now_ms: int) -> None:
        if client.is_ping_open:
            client.missed += 1
            if client.missed >= self._rules.ping_misses:
                self._die(client, now_ms)
            self._settle(client, now_ms)
        client.is_ping_open = True
        client.ping_due_ms = now_ms + self._rules.ping_interval_ms

    def _give_up(self, task: PushTask, now_ms: int) -> None:
        """A delivery was not answered: once more, or parked."""
        task.go_back()
        if task.state is TaskState.PARKED:
            return
        resent = task.resends if task.state is TaskState.TIMEOUT else 0
        if resent >= self._rules.resends:
            self._park(task, now_ms)
        else:
            self._enter(task, TaskState.TIMEOUT, now_ms)
            task.resends = resent
            self.look_again(task)
        self._settle(task.client, now_ms)

    def _park(self, task: PushTask, now_ms: int) -> None:
        if task.state is not TaskState.PARKED:
            self._enter(task, TaskState.PARKED, now_ms)

    def _enter(self, task: PushTask, state: TaskState, now_ms: int) -> None:
        """The one way from a state to another; the queues follow."""
        for queue in (self.ready, self.timeouts, self.dead_letters):
            queue.pop(task, None)
        if task.state is not state:
            task.since_ms = now_ms
        task.state, task.resends = state, 0
        if state is TaskState.TIMEOUT:
            self.timeouts[task] = None
        elif state is TaskState.PARKED:
            self.dead_letters[task] = None
        self._settle(task.client, now_ms)

    # -- resume ----------------------------------------------------------------------------------------------

    def resume(self, tasks: Iterable[PushTask], now_ms: int) -> list[tuple[PushTask, TaskState, bool]]:
        """Go on: each task with the state that it was in, and whether it goes on now. Of a dead client nothing does:
        there is nobody to send to."""
        found = []
        for task in list(tasks):
            before, is_dead = task.state, task.client.state is ClientState.DEAD
            goes_on = not is_dead and before is not TaskState.ENDED
            if goes_on and before is not TaskState.SENDING:
                task.unanswered = 0
                self._enter(task, TaskState.SENDING, now_ms)
                self.look_again(task)
            found.append((task, before, goes_on))
        return found


def _all_at(offset: int) -> tuple[int, int, int, int, int]:
    """Where a task begins: done, taken, next, read and sent to the same place."""
    return offset, offset, offset, offset, offset
