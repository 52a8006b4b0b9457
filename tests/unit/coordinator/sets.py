"""A broker set and its metadata entry in a test's hands: instructions are carried out at once, or kept back."""

from dataclasses import dataclass, field
from typing import Any

from penstock.coordinator.replica_sets import Phase, ReplicaSet
from penstock.coordinator.set_messages import (
    AlterSyncSet,
    Answer,
    ApplyId,
    Beat,
    Deposed,
    Elect,
    Instruction,
    Notify,
    Read,
    Register,
    Write,
)
from penstock.coordinator.set_record import Replica, SetRecord
from penstock.coordinator.set_rules import SetPolicy

START_MS = 1_000_000
POLICY = SetPolicy()
# What a lease is worth here, after the last beat.
FULL_MS = POLICY.lease_ms + POLICY.margin_ms


@dataclass
class SharedEntry:
    """One metadata entry that several coordinators write."""

    value: bytes | None = None
    version: int = -1

    def write(self, record: SetRecord | None, version: int | None) -> int | None:
        """The new version; raises on a conflict."""
        current = None if self.value is None else self.version
        if version != current:
            raise LookupError(f"version {version} is not {current}")
        self.version += 1
        self.value = None if record is None else record.encode()
        return None if record is None else self.version


@dataclass
class Bench:
    """One coordinator's view of a set, driven by hand."""

    term: int = 1
    entry: SharedEntry = field(default_factory=SharedEntry)
    policy: SetPolicy = POLICY
    now_ms: int = START_MS
    is_sure: bool = True
    # "ok", "keep" (instructions wait in `kept`), "fail" (surely not done); of writes also "lost" and "unknown": not
    # done or done, and nobody knows.
    writes: str = "ok"
    reads: str = "ok"

    def __post_init__(self) -> None:
        self.set = ReplicaSet("c", "broker-a", self.term, self.policy)
        self.answers: dict[object, Answer] = {}
        self.notices: list[Notify] = []
        self.kept: list[Instruction] = []
        self.deposed: int | None = None
        self._tokens = iter(range(1, 1_000_000))
        self.do(self.set.begin())

    @property
    def record(self) -> SetRecord:
        assert self.set.record is not None
        return self.set.record

    def do(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Answer):
                self.answers[instruction.token] = instruction
            elif isinstance(instruction, Notify):
                self.notices.append(instruction)
            elif isinstance(instruction, Deposed):
                self.deposed = instruction.term
            elif (self.writes if isinstance(instruction, Write) else self.reads) == "keep":
                self.kept.append(instruction)
            else:
                self.carry_out(instruction)
        self.set.validate(self.now_ms)

    def release(self) -> None:
        kept, self.kept = self.kept, []
        for instruction in kept:
            self.carry_out(instruction)

    def carry_out(self, instruction: Instruction) -> None:
        one = self.set
        if isinstance(instruction, Read):
            if self.reads == "fail":
                self.do(one.failed("out of reach", self.now_ms))
                return
            value = self.entry.value
            record = None if value is None else SetRecord.decode(value)
            self.do(one.loaded(record, None if record is None else self.entry.version, self.now_ms))
            return
        assert isinstance(instruction, Write)
        if self.writes == "fail":
            self.do(one.failed("out of reach", self.now_ms))
        elif self.writes == "lost":
            self.writes = "ok"
            self.do(one.unknown(self.now_ms))
        else:
            try:
                version = self.entry.write(instruction.record, instruction.version)
            except LookupError:
                self.do(one.conflict(self.now_ms))
                return
            if self.writes == "unknown":
                self.writes = "ok"
                self.do(one.unknown(self.now_ms))
            else:
                self.do(one.written(version, self.now_ms))

    # -- what brokers do -------------------------------------------------------------------------------------

    def ask(self, request: Any, wait_ms: int = 5_000) -> Answer | None:
        token = next(self._tokens)
        self.do(self.set.submit(token, request, self.now_ms, self.now_ms + wait_ms))
        return self.answers.get(token)

    def code(self, request: Any) -> int:
        answer = self.ask(request)
        assert answer is not None
        return answer.code

    def beat(self, broker_id: int, **changes: Any) -> Answer:
        token = next(self._tokens)
        self.do(self.set.beat(token, beat(broker_id, **changes), self.now_ms, is_sure=self.is_sure))
        return self.answers[token]

    def advance(self, milliseconds: int) -> None:
        """Time passes in steps of a tick."""
        for _ in range(milliseconds // 50):
            self.now_ms += 50
            self.do(self.set.tick(self.now_ms))
        self.now_ms += milliseconds % 50
        self.do(self.set.tick(self.now_ms))

    def keep_alive(self, milliseconds: int, *broker_ids: int, **changes: Any) -> None:
        """Time passes while these brokers beat every 500 ms, in the epoch of the record."""
        for _ in range(milliseconds // 500):
            for broker_id in broker_ids:
                self.beat(broker_id, **{"epoch": self.record.master_epoch, **changes})
            self.advance(500)


def beat(broker_id: int, **changes: Any) -> Beat:
    values: dict[str, Any] = {
        "connection": 100 + broker_id,
        "address": f"10.0.0.{broker_id}:10911",
        "ha_address": f"10.0.0.{broker_id}:10912",
        "incarnation": 1,
        "epoch": 1,
        **changes,
    }
    return Beat(broker_id, **values)


def register(broker_id: int, **changes: Any) -> Register:
    values: dict[str, Any] = {
        "address": f"10.0.0.{broker_id}:10911",
        "ha_address": f"10.0.0.{broker_id}:10912",
        "incarnation": 1,
        "connection": 100 + broker_id,
        **changes,
    }
    return Register(broker_id, **values)


def running_set(brokers: int = 3, in_sync: int | None = None, **options: Any) -> Bench:
    """A set with its brokers registered and beating; 1 is master in epoch 1, the first `in_sync` are in the set."""
    bench = Bench(**options)
    for broker_id in range(1, brokers + 1):
        assert bench.code(ApplyId(broker_id, f"code-{broker_id}")) == 0
        assert bench.code(register(broker_id)) == 0
    assert bench.code(Elect(1)) == 0
    for broker_id in range(1, brokers + 1):
        bench.beat(broker_id)
    members = frozenset(range(1, (in_sync or brokers) + 1))
    if members != bench.record.sync_set:
        assert bench.code(AlterSyncSet(1, 1, bench.record.set_epoch, members)) == 0
    assert bench.set.phase is Phase.READY
    bench.notices.clear()
    return bench


def record_of(replicas: int = 3, **changes: Any) -> SetRecord:
    values: dict[str, Any] = {
        "replicas": {
            n: Replica(f"10.0.0.{n}:10911", f"10.0.0.{n}:10912", f"code-{n}") for n in range(1, replicas + 1)
        },
        "next_id": replicas + 1,
        "master_id": 1,
        "master_epoch": 1,
        "set_epoch": 2,
        "sync_set": frozenset(range(1, replicas + 1)),
        "term": 1,
        **changes,
    }
    return SetRecord("c", "broker-a", **values)
