"""Pushing against a model: clients that answer, answer late, answer a part or never, die, come back and leave, while
their queue grows. Whatever they do: nothing is passed over, nothing overtakes, nothing comes twice without a reason,
and never more is on its way than the window allows."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.push_state import PushRules, PushState
from penstock.broker.push_tasks import ClientState, Place, PushTask, Sent, TaskState, Window
from penstock.errors import RequestError

RULES = PushRules(
    answer_timeout_ms=1_000,
    resends=1,
    ping_interval_ms=700,
    ping_misses=3,
    dead_keep_ms=20_000,
    clients_max=3,
    client_subscriptions_max=2,
    subscriptions_max=4,
)
PLACE = Place("g", "T", 0)
WINDOW = Window(messages=7, bytes=60)
NAMES = ("a", "b")


@dataclass
class Peer:
    """A client's side: up to where it has taken the queue, and has done with it."""

    position: int
    done: int
    inbox: deque[tuple[PushTask, Sent]] = field(default_factory=deque)
    # What it has answered, on its way to the broker.
    answers: deque[tuple[PushTask, Sent, int, int, bool]] = field(default_factory=deque)
    # Whether something was given up since it began: only then may anything come again, or after a gap.
    is_disturbed: bool = False


class Pushing:
    def __init__(self) -> None:
        self.state = PushState(RULES)
        self.now_ms = 0
        self.sizes: list[int] = []
        self.peers: dict[str, Peer] = {}
        self.links: dict[str, object] = {}
        self.committed = 0

    # -- what the world does ---------------------------------------------------------------------------------

    def append(self, sizes: list[int]) -> None:
        self.sizes += sizes
        for task in self.state.by_queue.get((b"T", 0), {}):
            self.state.look_again(task)

    def wait(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        before = {task: len(task.sent) for task in self.state.tasks.values()}
        self.state.tick(self.now_ms)
        for task, count in before.items():
            if count and not task.sent:
                self._disturb(task)
        while self.state.forgotten:
            self.peers.pop(self.state.forgotten.pop().name, None)

    def pong(self, name: str) -> None:
        client = self.state.clients.get(name)
        if client is not None and client.link is not None:
            self.state.heard(client, self.now_ms)

    def register(self, name: str, with_memory: bool) -> None:
        """Over a new connection: of the same process, or of one that has lost what it had not done."""
        link = self.links[name] = object()
        self.state.register(name, link, self.now_ms)
        peer = self.peers.get(name)
        if peer is not None:
            peer.inbox.clear()
            peer.answers.clear()
            peer.is_disturbed = True
            if not with_memory:
                peer.position = peer.done

    def subscribe(self, name: str) -> None:
        client, holder = self.state.clients.get(name), self.state.tasks.get(PLACE)
        if client is None or client.link is None:
            return
        try:
            self.state.subscribe(client, PLACE, self.committed, WINDOW, self.now_ms)
        except RequestError:
            assert holder is not None
            assert holder.client is not client
            assert holder.client.state is not ClientState.DEAD
            return
        assert holder is None or holder.client is client or holder.client.state is ClientState.DEAD
        self.peers = {name: Peer(self.committed, self.committed)}

    def lose(self, name: str) -> None:
        client = self.state.clients.get(name)
        if client is not None and client.link is not None:
            self.state.lost(client, client.link, self.now_ms)
            assert client.state is ClientState.DEAD
            assert all(task.state is TaskState.PARKED for task in client.tasks.values())
            if name in self.peers:
                self.peers[name].inbox.clear()
                self.peers[name].answers.clear()
                self.peers[name].is_disturbed = True

    def close(self, name: str) -> None:
        client = self.state.clients.get(name)
        if client is not None:
            self.state.close(client)
            assert PLACE not in self.state.tasks or self.state.tasks[PLACE].client is not client
            self.peers.pop(name, None)

    def resume(self) -> None:
        self.state.resume(list(self.state.tasks.values()), self.now_ms)

    # -- the service -----------------------------------------------------------------------------------------

    def serve(self, most: int) -> None:
        task = self.state.take_ready()
        if task is None:
            return
        room = task.room()
        assert room is not None
        offset, count, size = task.read_offset, 0, 0
        while offset + count < len(self.sizes) and count < min(most, room.messages):
            more = self.sizes[offset + count]
            if count and size + more > room.bytes:
                break
            count, size = count + 1, size + more
        if not count:
            task.is_at_end = True
        elif task.fits(size):
            one = self.state.sent(task, offset + count, count, size, self.now_ms)
            self.peers[task.client.name].inbox.append((task, one))

    def take(self, name: str, part: int, done: int) -> None:
        """A client takes a delivery, sometimes not all of it, and answers."""
        peer = self.peers.get(name)
        if peer is None or not peer.inbox:
            return
        task, one = peer.inbox.popleft()
        assert one.start <= peer.position or peer.is_disturbed
        if not peer.is_disturbed:
            assert one.start == peer.position, "it came twice without a reason"
        hold = False
        if one.start <= peer.position < one.end:
            end = one.end if part else max(one.start + (one.end - one.start) // 2, peer.position)
            if end < one.end:
                peer.is_disturbed = True
                hold = end <= one.start
            peer.position = max(peer.position, end)
        peer.done = min(peer.position, peer.done + done)
        peer.answers.append((task, one, peer.position, peer.done, hold))

    def answer(self, name: str, is_lost: bool) -> None:
        peer = self.peers.get(name)
        if peer is None or not peer.answers:
            return
        task, one, taken, done, hold = peer.answers.popleft()
        if is_lost:
            return  # the tick will know
        self._answer(task, one, taken, done, hold)

    def _answer(self, task: PushTask, one: Sent, taken: int, done: int, hold: bool) -> None:
        found = self.state.answered(task, one, taken, done, self.now_ms, hold=hold)
        if found is not None:
            assert found <= taken
            self.committed = found

    def refuse(self, name: str) -> None:
        peer = self.peers.get(name)
        if peer is not None and peer.inbox:
            task, one = peer.inbox.popleft()
            peer.is_disturbed = True
            self.state.refused(task, one, self.now_ms)

    def lie(self, name: str) -> None:
        """It has taken, and done with, far more than it was sent: counts as what it was sent, commits none."""
        peer = self.peers.get(name)
        if peer is None or not peer.inbox:
            return
        task, one = peer.inbox.popleft()
        assert self.state.answered(task, one, 10**9, 10**9, self.now_ms, hold=False) is None
        assert task.taken <= max(task.high, self.committed)
        peer.position, peer.is_disturbed = max(peer.position, task.taken), True

    def _disturb(self, task: PushTask) -> None:
        peer = self.peers.get(task.client.name)
        if peer is not None:
            peer.is_disturbed = True

    # -- always ----------------------------------------------------------------------------------------------

    def window_holds(self) -> None:
        for task in self.state.tasks.values():
            assert task.messages_out == sum(one.count for one in task.sent.values()) <= WINDOW.messages
            assert task.bytes_out == sum(one.bytes for one in task.sent.values())
            assert task.bytes_out <= WINDOW.bytes or len(task.sent) == 1

    def offsets_are_in_order(self) -> None:
        for task in self.state.tasks.values():
            assert task.done <= task.taken <= task.next_offset <= task.read_offset <= len(self.sizes)
            on_their_way = list(task.sent.values())
            for one, following in pairwise(on_their_way):
                assert one.end == following.start, "nothing is left out between deliveries"
            if on_their_way:
                assert on_their_way[0].start <= task.taken < on_their_way[0].end
                assert on_their_way[-1].end == task.next_offset

    def queues_agree_with_states(self) -> None:
        tasks = self.state.tasks.values()
        assert set(self.state.timeouts) == {one for one in tasks if one.state is TaskState.TIMEOUT}
        assert set(self.state.dead_letters) == {one for one in tasks if one.state is TaskState.PARKED}
        for client in self.state.clients.values():
            assert set(client.tasks.values()) == {one for one in tasks if one.client is client}
            if client.state is ClientState.DEAD:
                assert all(task.state is TaskState.PARKED for task in client.tasks.values())
            is_late = bool(client.missed) or any(
                one.state is TaskState.TIMEOUT for one in client.tasks.values()
            )
            if client.state is not ClientState.DEAD:
                assert client.state is (ClientState.TIMEOUT if is_late else ClientState.ALIVE)

    def in_the_end_everything_arrives(self) -> None:
        """The client comes back to life and answers all it is sent: it gets the queue to its end."""
        task = self.state.tasks.get(PLACE)
        if task is None:
            return
        name = task.client.name
        peer = self.peers.get(name)
        if peer is None:
            return
        self.register(name, True)
        peer.is_disturbed = True
        for _ in range(4 * len(self.sizes) + 8):
            self.serve(5)
            while peer.inbox:
                self.take(name, 1, 9)
            while peer.answers:
                self._answer(*peer.answers.popleft())
        assert task.taken == peer.position == len(self.sizes)
        assert task.state is TaskState.SENDING

    def check(self) -> None:
        self.window_holds()
        self.offsets_are_in_order()
        self.queues_agree_with_states()

    def step(self, kind: str, who: int, number: int) -> None:
        name = NAMES[who % 2] if who else self._holder()
        match kind:
            case "append":
                self.append([1 + (number * n) % 80 for n in range(1, 2 + number % 6)])
            case "wait":
                self.wait(1 + number)
            case "pong":
                self.pong(name)
            case "register":
                self.register(name, with_memory=bool(number % 2))
            case "subscribe":
                self.subscribe(name)
            case "lose":
                self.lose(name)
            case "close":
                self.close(name)
            case "resume":
                self.resume()
            case "serve":
                self.serve(1 + number % 5)
            case "take":
                self.take(name, number % 4, number % 10)
            case "answer":
                self.answer(name, is_lost=number % 7 == 0)
            case "refuse":
                self.refuse(name)
            case "lie":
                self.lie(name)
            case "end":
                self.in_the_end_everything_arrives()

    def _holder(self) -> str:
        task = self.state.tasks.get(PLACE)
        return NAMES[0] if task is None else task.client.name


# Most of what happens is messages, deliveries and answers.
KINDS = (
    *("append",) * 3,
    *("serve",) * 6,
    *("take",) * 6,
    *("answer",) * 5,
    *("wait", "pong", "resume") * 2,
    *("register", "subscribe", "lose", "close", "refuse", "lie", "end"),
)
STEPS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 3), st.integers(0, 1_200)), min_size=40, max_size=120
)


@pytest.mark.seed("S4-87", "S4-88", "S4-89", "S4-90", "S4-91", "S4-92")
@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_nothing_is_lost_overtakes_or_comes_twice_without_a_reason(steps: list[tuple[str, int, int]]) -> None:
    play(steps)


@pytest.mark.parametrize("start", [0, 300])
def test_the_same_over_many_long_histories(start: int) -> None:
    """What hypothesis tries first is short of deaths and takeovers; these are not, and fail with their seed."""
    for seed in range(start, start + 300):
        random = Random(seed)
        count = random.randint(40, 200)
        steps = [(random.choice(KINDS), random.randint(0, 3), random.randint(0, 1_200)) for _ in range(count)]
        try:
            play(steps)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


def play(steps: list[tuple[str, int, int]]) -> None:
    run = Pushing()
    run.append([5] * 12)
    for name in NAMES:
        run.register(name, with_memory=True)
    run.subscribe(NAMES[0])
    for kind, who, number in steps:
        run.step(kind, who, number)
        run.check()
    run.in_the_end_everything_arrives()
    run.check()
