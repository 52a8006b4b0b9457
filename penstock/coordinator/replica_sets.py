"""One broker set as its leading coordinator sees it: events in, instructions out.

                loaded                 written
    LOADING ─────────────► CLAIMING ─────────────► READY ◄──────────► WRITING
       ▲  ▲                    │                     one write at a time  │
       │  └── after a while ── WAITING ◄─ failed                          │
       └────────────────────── conflict, outcome unknown ◄────────────────┘

Rules, each with the reason why it is safe:

- **Claim first.** A coordinator that begins to lead writes each set's entry once, with its own term, before it acts
  on it. A write that an earlier leader has under way then finds another version and fails.
- **One write at a time.** What is asked meanwhile waits and is judged by the record that came out.
- **Unknown is settled by writing.** After a write of unknown outcome the entry is read and claimed again. Whatever
  was on its way has arrived by then, or never will.
- **No lease in doubt.** A lease is granted only while the record is known to be the newest, the write under way (if
  any) keeps the master, this coordinator is surely the leader, and the master acts in the record's epoch. So nobody
  is granted a lease whom another record may have replaced.
- **No election under a lease.** See leases.py. An administrator who designates another master makes the present one
  run out of its lease: it is granted no more, and the designated one follows when it is over.
- **A restart is an election.** A master that was started anew may have lost what was not on disk. It becomes master
  only in a new epoch, in which its replicas compare their logs with its own.

Sans-I/O and deterministic: no clock, no disk, no task. `handle`-like methods are called by one owner, which carries
out the instructions and reports back; `tick` is called often (every 50 ms), as leases end by time alone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from enum import Enum

from penstock.coordinator import set_rules
from penstock.coordinator.leases import MasterLease, Members
from penstock.coordinator.set_messages import (
    AlterSyncSet,
    Answer,
    ApplyId,
    Asked,
    Beat,
    Change,
    Clean,
    Deposed,
    Elect,
    Instruction,
    Notify,
    Read,
    Register,
    Request,
    Write,
)
from penstock.coordinator.set_record import SetRecord, set_path
from penstock.coordinator.set_rules import Changed, Decision, Refused, SetPolicy
from penstock.errors import invariant
from penstock.protocol.codes import ResponseCode

WAITING_MAX = 1_000


class Phase(Enum):
    """See the picture in the module's text. ENDED: a later leader owns the set."""

    LOADING = "loading"
    CLAIMING = "claiming"
    READY = "ready"
    WRITING = "writing"
    WAITING = "waiting"
    ENDED = "ended"


class ReplicaSet:
    """See the module's text."""

    def __init__(self, cluster: str, name: str, term: int, policy: SetPolicy) -> None:
        self.cluster = cluster
        self.name = name
        self.term = term
        self.path = set_path(cluster, name)
        self.record: SetRecord | None = None
        self.phase = Phase.LOADING
        self.members = Members(policy.silent_ms)
        self.lease = MasterLease(policy.lease_ms, policy.margin_ms)
        self.elections = 0
        self._policy = policy
        self._version: int | None = None
        self._change: Change | None = None
        self.is_claimed = False
        self._waiting: deque[Asked] = deque()
        self._designation: Asked | None = None
        # Until when a master that was just elected may still be on its way to act as one.
        self._promotion_until_ms = 0
        self._retry_ms = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is no such set, and nobody is about to make it."""
        return self.record is None and self.phase is Phase.READY and not self._waiting

    # -- the entry -------------------------------------------------------------------------------------------

    def begin(self) -> list[Instruction]:
        """This coordinator begins to lead, or is asked about a set for the first time."""
        self.phase = Phase.LOADING
        return [Read(self.path)]

    def loaded(self, record: SetRecord | None, version: int | None, now_ms: int) -> list[Instruction]:
        """What a `Read` found."""
        if record is None:
            self.record, self._version = None, None
            self.phase = Phase.READY
            return self._go_on(now_ms)
        if record.term > self.term:
            return self._end(record.term)
        self.phase = Phase.CLAIMING
        self._change = Change(replace(record, term=self.term), None)
        return [Write(self.path, self._change.record, version)]

    def written(self, version: int | None, now_ms: int) -> list[Instruction]:
        """A `Write` is done; the entry has this version now (None: it is deleted)."""
        change, before = self._take_change(), self.record
        self.record, self._version = change.record, version
        self.phase = Phase.READY
        found: list[Instruction] = []
        if not self.is_claimed and self.record is not None:
            self.is_claimed = True
            self._hold(now_ms)
        elif self.record is not None and _mastership(self.record) != _mastership(before):
            found += self._elected(self.record, now_ms)
        if change.asked is not None:
            self._granted(change.asked, now_ms)
            found += self._answer(change.asked, ResponseCode.SUCCESS)
        return found + self._go_on(now_ms)

    def conflict(self, now_ms: int) -> list[Instruction]:
        """A `Write` found another version than the one it named: somebody else wrote. Read, and judge anew."""
        return self._read_again(is_uncertain=False)

    def unknown(self, now_ms: int) -> list[Instruction]:
        """Nobody can say whether a `Write` was done."""
        return self._read_again(is_uncertain=True)

    def _read_again(self, *, is_uncertain: bool) -> list[Instruction]:
        asked = self._take_change().asked
        if asked is not None:
            self._waiting.appendleft(replace(asked, is_uncertain=asked.is_uncertain or is_uncertain))
        return self.begin()

    def failed(self, why: str, now_ms: int) -> list[Instruction]:
        """A `Write` was surely not done, or a `Read` not answered."""
        self._retry_ms = now_ms + self._policy.retry_ms
        if self.phase is not Phase.WRITING:
            self._change = None
            self.phase = Phase.WAITING
            return []
        change = self._take_change()
        self.phase = Phase.READY
        found: list[Instruction] = []
        if change.asked is not None:
            found += self._answer(change.asked, ResponseCode.SERVICE_NOT_AVAILABLE, why)
        return found + self._go_on(now_ms)

    def _take_change(self) -> Change:
        change, self._change = self._change, None
        if change is None:
            raise AssertionError("broken invariant: a write is reported that nobody asked for")
        return change

    def _end(self, term: int) -> list[Instruction]:
        self.phase = Phase.ENDED
        refused = [self._refuse(asked) for asked in self._waiting]
        self._waiting.clear()
        return [*(answer for answers in refused for answer in answers), Deposed(term)]

    # -- requests --------------------------------------------------------------------------------------------

    def submit(self, token: object, request: Request, now_ms: int, expires_ms: int) -> list[Instruction]:
        """A request; its `Answer` may come at once or later, or never if it expires while it waits."""
        asked = Asked(token, request, expires_ms)
        if self.phase is Phase.READY and not self._waiting:
            return self._decide(asked, now_ms)
        if self.phase is Phase.ENDED:
            return self._refuse(asked)
        if len(self._waiting) >= WAITING_MAX:
            return self._answer(
                asked, ResponseCode.SYSTEM_BUSY, f"{WAITING_MAX} requests wait for {self.name}"
            )
        self._waiting.append(asked)
        return []

    def _go_on(self, now_ms: int) -> list[Instruction]:
        """Decide what has waited, until something is written again."""
        found: list[Instruction] = []
        while self._waiting and self.phase is Phase.READY:
            asked = self._waiting.popleft()
            # Whoever asked has given up, and may have asked for something else since.
            if now_ms < asked.expires_ms:
                found += self._decide(asked, now_ms)
        return found + self.tick(now_ms)

    def _decide(self, asked: Asked, now_ms: int) -> list[Instruction]:
        if isinstance(asked.request, Elect) and self._makes_room(asked, asked.request, now_ms):
            return []
        decision = self._judge(asked.request, now_ms)
        if isinstance(decision, Changed):
            return self._write(decision.record, asked)
        if isinstance(decision, Refused):
            return self._answer(asked, decision.code, decision.remark)
        self._granted(asked, now_ms)
        return [*self._answer(asked, ResponseCode.SUCCESS), *self.tick(now_ms)]

    def _judge(self, request: Request, now_ms: int) -> Decision:
        if isinstance(request, ApplyId):
            return set_rules.apply_id(
                self.record, self.cluster, self.name, request, self._policy.replicas_max
            )
        if self.record is None:
            return Refused(
                ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, f"there is no broker set {self.name}"
            )
        if isinstance(request, Register):
            return self._judge_register(self.record, request, now_ms)
        if isinstance(request, AlterSyncSet):
            return set_rules.alter_sync_set(
                self.record, request, lambda one: self.members.is_alive(one, now_ms)
            )
        if isinstance(request, Clean):
            return set_rules.clean(self.record, request, lambda one: self.members.is_alive(one, now_ms))
        return self._judge_elect(self.record, request, now_ms)

    def _judge_register(self, record: SetRecord, request: Register, now_ms: int) -> Decision:
        if self.members.is_outdated(request.broker_id, request.incarnation):
            return Refused(ResponseCode.CONTROLLER_BROKER_ID_INVALID, _OUTDATED.format(request.broker_id))
        known = record.replicas.get(request.broker_id)
        member = self.members.get(request.broker_id)
        if (
            known is not None
            and member is not None
            and member.incarnation > 0
            and member.is_alive(now_ms)
            and known.address not in ("", request.address)
        ):
            return Refused(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                f"broker {request.broker_id} of {self.name} lives at {known.address}; two processes must not have "
                "one id",
            )
        return set_rules.register(record, request)

    def _judge_elect(self, record: SetRecord, request: Elect, now_ms: int) -> Decision:
        if record.master_epoch > 0 and not self.lease.has_run_out(now_ms):
            return Refused(
                ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
                f"the master of {self.name} is {record.master_id}, or its lease has not run out yet",
            )
        return set_rules.elect(
            record,
            request,
            self.members.alive(now_ms),
            is_master_fit=self._is_master_fit(record, now_ms),
            is_unclean_allowed=self._policy.is_unclean_allowed,
        )

    def _makes_room(self, asked: Asked, request: Elect, now_ms: int) -> bool:
        """Whether a designated broker has to wait until the master's lease, extended no more, has run out."""
        record = self.record
        if (
            record is None
            or not request.is_designated
            or request.broker_id == record.master_id
            or self.lease.has_run_out(now_ms)
            or self._designation is not None
            or request.broker_id not in record.sync_set
            or not self.members.is_alive(request.broker_id, now_ms)
        ):
            return False
        self._designation = asked
        return True

    def _granted(self, asked: Asked, now_ms: int) -> None:
        """What a request that was granted means besides the record."""
        request = asked.request
        if isinstance(request, Register) and request.incarnation > 0:
            member = self.members.get(request.broker_id)
            if member is not None and member.incarnation == request.incarnation:
                return  # The same process once more: its first answer was lost.
            self.members.registered(request, now_ms)
            if self.record is not None and request.broker_id == self.record.master_id:
                self.lease.end_before(request.broker_id, request.incarnation, now_ms)
                self._promotion_until_ms = 0
        elif isinstance(request, Clean):
            known = self.record.replicas if self.record is not None else {}
            for member in list(self.members):
                if member.broker_id not in known:
                    self.members.forget(member.broker_id)

    # -- beats and time --------------------------------------------------------------------------------------

    def beat(self, token: object, beat: Beat, now_ms: int, *, is_sure: bool) -> list[Instruction]:
        """A broker reports. `is_sure`: this coordinator surely leads at this moment."""
        asked = Asked(token, Elect(beat.broker_id), now_ms)
        if self.phase is Phase.ENDED:
            return self._refuse(asked)
        record, member = self.record, self.members.get(beat.broker_id)
        if record is None or beat.broker_id not in record.replicas:
            code = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
            if self.phase in (Phase.LOADING, Phase.CLAIMING, Phase.WAITING):
                code = ResponseCode.SYSTEM_BUSY
            return self._answer(asked, code, f"broker {beat.broker_id} of {self.name} is not known here")
        if self.members.is_outdated(beat.broker_id, beat.incarnation):
            return self._answer(
                asked, ResponseCode.CONTROLLER_BROKER_ID_INVALID, _OUTDATED.format(beat.broker_id)
            )
        if member is not None and member.incarnation < beat.incarnation:
            return self._answer(
                asked,
                ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
                f"broker {beat.broker_id} was started anew; it has to register (1003)",
            )
        if beat.epoch > record.master_epoch:
            return self._answer(
                asked,
                ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
                f"broker {beat.broker_id} acts in epoch {beat.epoch}, but {self.name} is only at "
                f"{record.master_epoch}: the metadata is older than the brokers",
            )
        self.members.heard(beat, now_ms)
        lease_ms = 0
        if beat.is_stopping:
            self.lease.give_back(beat.broker_id, beat.incarnation, now_ms)
        elif is_sure and self._may_grant(record, beat):
            lease_ms = self.lease.grant(beat, now_ms)
        found = self._answer(asked, ResponseCode.SUCCESS, lease_ms=lease_ms)
        if self.phase is Phase.READY:
            moved = set_rules.located(record, beat.broker_id, beat.address, beat.ha_address)
            if moved is not record:
                return found + self._write(moved, None)
        return found + self.tick(now_ms)

    def _may_grant(self, record: SetRecord, beat: Beat) -> bool:
        if beat.broker_id != record.master_id or beat.broker_id not in record.sync_set:
            return False
        if beat.epoch != record.master_epoch or self._designation is not None:
            return False
        if self.phase is Phase.WRITING and self._change is not None:
            return _mastership(self._change.record) == _mastership(record)
        return self.phase is Phase.READY

    def dropped(self, connection: int, now_ms: int) -> list[Instruction]:
        """A connection is gone. That only makes us look at once: it shortens no lease."""
        lost = self.members.dropped(connection)
        if not lost or self.phase is Phase.ENDED:
            return []
        self.lease.connection_dropped(lost, now_ms)
        return self.tick(now_ms)

    def resume(self, now_ms: int) -> list[Instruction]:
        """It was uncertain for a while whether this coordinator leads, and it does. Beats were not taken meanwhile,
        so silence and leases that ran out say nothing about anybody."""
        self.members.refresh(now_ms)
        self._hold(now_ms)
        self._promotion_until_ms = now_ms + self._policy.promotion_ms
        return []

    def tick(self, now_ms: int) -> list[Instruction]:
        """Time has passed."""
        if self.phase is Phase.WAITING and now_ms >= self._retry_ms:
            return self.begin()
        record = self.record
        if self.phase is not Phase.READY or record is None or not self.lease.has_run_out(now_ms):
            return []
        if self._designation is not None:
            asked, self._designation = self._designation, None
            return self._decide(asked, now_ms)
        if record.master_epoch == 0 or now_ms < self._retry_ms or self._is_master_fit(record, now_ms):
            return []
        decision = self._judge_elect(record, Elect(), now_ms)
        return self._write(decision.record, None) if isinstance(decision, Changed) else []

    def _is_master_fit(self, record: SetRecord, now_ms: int) -> bool:
        """Whether the master is there and acts, or was elected just now and is about to."""
        if record.master_id not in record.sync_set or not self.members.is_alive(record.master_id, now_ms):
            return False
        member = self.members.get(record.master_id)
        is_acting = member is not None and member.epoch == record.master_epoch
        return is_acting or now_ms < self._promotion_until_ms

    # -- helpers ---------------------------------------------------------------------------------------------

    def _hold(self, now_ms: int) -> None:
        """Whatever lease there may be, it was granted before this moment."""
        record = self.record
        if record is not None and record.master_id is not None:
            self.lease.hold(record.master_id, now_ms)

    def _elected(self, record: SetRecord, now_ms: int) -> list[Instruction]:
        self.elections += 1
        if record.master_id is None:
            return []
        self.lease.begin(record.master_id, now_ms)
        self._promotion_until_ms = now_ms + self._policy.promotion_ms
        there = sorted(self.members.alive(now_ms).values(), key=lambda one: one.broker_id)
        return [Notify(record, tuple((one.broker_id, one.connection) for one in there))]

    def _write(self, record: SetRecord | None, asked: Asked | None) -> list[Instruction]:
        self.phase = Phase.WRITING
        self._change = Change(None if record is None else replace(record, term=self.term), asked)
        return [Write(self.path, self._change.record, self._version)]

    def _answer(self, asked: Asked, code: int, remark: str = "", *, lease_ms: int = 0) -> list[Instruction]:
        if asked.token is None:
            return []
        return [Answer(asked.token, int(code), remark, self.record, lease_ms)]

    def _refuse(self, asked: Asked) -> list[Instruction]:
        """Another coordinator leads. What may have been carried out is not called refused: a master would stop
        counting members that it proposed and that may have been let in."""
        if asked.is_uncertain:
            return self._answer(asked, ResponseCode.SERVICE_NOT_AVAILABLE, "it may have been carried out")
        return self._answer(asked, ResponseCode.CONTROLLER_NOT_LEADER, "another coordinator leads; ask it")

    def validate(self, now_ms: int) -> None:
        """What must hold between any two events; a simulation asks after each."""
        record = self.record
        invariant((self._change is not None) == (self.phase in _WRITES), "a write under way and its phase")
        if record is None or not self.is_claimed:
            return
        invariant(record.sync_set <= record.replicas.keys(), "the sync-state set holds replicas only")
        invariant(record.next_id > max(record.replicas, default=0), "ids are given once")
        if record.master_id is not None and not self.lease.has_run_out(now_ms):
            invariant(self.lease.holder == record.master_id, "nobody is master while another one has a lease")


_WRITES = (Phase.CLAIMING, Phase.WRITING)
_OUTDATED = "a later process of broker {} has reported; this one is outdated"


def _mastership(record: SetRecord | None) -> tuple[int | None, int] | None:
    return None if record is None else (record.master_id, record.master_epoch)
