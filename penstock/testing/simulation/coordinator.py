"""A simulated coordinator: the state machine of the set, and a lead that ends when it cannot be sure of it.

The rules of `coordinator/leadership.py` and `coordinator/broker_sets.py` with a simulated service in place of a
metadata store: sure is only who got an answer to a renewal that was *sent* less than a session ago.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.coordinator.replica_sets import ReplicaSet
from penstock.coordinator.set_messages import (
    Answer,
    Beat,
    Deposed,
    Instruction,
    Notify,
    Read,
    Request,
    Write,
)
from penstock.coordinator.set_record import SetRecord
from penstock.coordinator.set_rules import SetPolicy
from penstock.protocol.codes import ResponseCode
from penstock.testing.simulation.metadata import SESSION_MS, Metadata, ask
from penstock.testing.simulation.world import Process, World

CLUSTER, SET = "cluster", "set"
RENEW_MS = 500
MARGIN_MS = 200
STORE_TIMEOUT_MS = 1_000
TICK_MS = 50
Reply = Callable[[Answer, int], None]
Tell = Callable[[int, Notify, int], None]


class SimCoordinator(Process):
    """One of several. `tell` carries a notice to the broker behind a connection."""

    def __init__(self, world: World, name: str, metadata: Metadata, policy: SetPolicy, tell: Tell) -> None:
        super().__init__(world, name)
        self._metadata = metadata
        self._policy = policy
        self._tell = tell
        self.set: ReplicaSet | None = None
        self.term = 0
        self._sure_until_ms = 0
        self._was_sure = False
        self._replies: dict[int, Reply] = {}
        self._last_token = 0

    def started(self) -> None:
        self.set, self.term, self._sure_until_ms = None, 0, 0
        self._replies.clear()
        self.every(RENEW_MS, self._renew)
        self.every(TICK_MS, self._tick)

    # -- leading ---------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        return self.set is not None

    @property
    def is_sure(self) -> bool:
        return self.set is not None and self.now_ms() < self._sure_until_ms

    def _renew(self) -> None:
        sent_ms = self.now_ms()
        ask(
            self,
            self._metadata,
            lambda: self._metadata.renew(self.name),
            STORE_TIMEOUT_MS,
            lambda answer: self._renewed(sent_ms, answer),
        )

    def _renewed(self, sent_ms: int, answer: tuple[str | None, int] | None) -> None:
        if answer is None:
            return
        leader, term = answer
        if leader != self.name or term < self.term:
            if term > self.term:
                self._rest()
            return
        self._sure_until_ms = max(self._sure_until_ms, sent_ms + SESSION_MS - MARGIN_MS)
        if self.set is None or term != self.term:
            self.term = term
            self.set = ReplicaSet(CLUSTER, SET, term, self._policy)
            self._was_sure = True
            self._carry_out(self.set.begin())

    def _rest(self) -> None:
        self.set = None
        self._sure_until_ms = 0
        self._replies.clear()

    def _tick(self) -> None:
        if self.set is None:
            return
        if self.is_sure and not self._was_sure:
            self._carry_out(self.set.resume(self.now_ms()))
        self._was_sure = self.is_sure
        if self.is_sure:
            self._carry_out(self.set.tick(self.now_ms()))
        if self.leads:
            self.set.validate(self.now_ms())

    # -- brokers ---------------------------------------------------------------------------------------------

    def submit(self, request: Request, reply: Reply, timeout_ms: int) -> None:
        if self.set is None or not self.is_sure:
            reply(Answer(0, int(ResponseCode.CONTROLLER_NOT_LEADER)), self.term)
            return
        self._last_token += 1
        token, now_ms = self._last_token, self.now_ms()
        self._replies[token] = reply
        self._carry_out(self.set.submit(token, request, now_ms, now_ms + timeout_ms))

    def beat(self, beat: Beat, reply: Reply) -> None:
        if self.set is None:
            reply(Answer(0, int(ResponseCode.CONTROLLER_NOT_LEADER)), self.term)
            return
        answer, *rest = self.set.beat(0, beat, self.now_ms(), is_sure=self.is_sure)
        assert isinstance(answer, Answer)
        reply(answer, self.term)
        self._carry_out(rest)

    def dropped(self, connection: int) -> None:
        if self.set is not None:
            self._carry_out(self.set.dropped(connection, self.now_ms()))

    # -- instructions ----------------------------------------------------------------------------------------

    def _carry_out(self, instructions: list[Instruction]) -> None:
        one = self.set
        for step in instructions:
            if one is None or one is not self.set:
                return
            if isinstance(step, Answer):
                reply = self._replies.pop(step.token, None) if isinstance(step.token, int) else None
                if reply is not None:
                    reply(step, self.term)
            elif isinstance(step, Notify):
                self.world.say(
                    f"{self.name} elects {step.record.master_id} for epoch {step.record.master_epoch}"
                )
                for broker_id, _ in step.members:
                    self._tell(broker_id, step, self.term)
            elif isinstance(step, Write):
                self._write(one, step)
            elif isinstance(step, Read):
                self._read(one, step)
            elif isinstance(step, Deposed):
                self._rest()

    def _read(self, one: ReplicaSet, step: Read) -> None:
        def done(answer: tuple[int | None, SetRecord | None] | None) -> None:
            if self.set is not one:
                return
            if answer is None:
                self._carry_out(one.failed("no answer", self.now_ms()))
            else:
                self._carry_out(one.loaded(answer[1], answer[0], self.now_ms()))

        ask(self, self._metadata, lambda: self._metadata.read(step.path), STORE_TIMEOUT_MS, done)

    def _write(self, one: ReplicaSet, step: Write) -> None:
        def done(answer: tuple[bool, int | None] | None) -> None:
            if self.set is not one:
                return
            if answer is None:
                self._carry_out(one.unknown(self.now_ms()))
            elif answer[0]:
                self._carry_out(one.written(answer[1], self.now_ms()))
            else:
                self._carry_out(one.conflict(self.now_ms()))

        ask(
            self,
            self._metadata,
            lambda: self._metadata.write(step.path, step.record, step.version),
            STORE_TIMEOUT_MS,
            done,
        )
