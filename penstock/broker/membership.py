"""A broker as a member of its set: which epoch it knows, what it is in it, and whether it holds a lease.

    WAITING     nobody has said what this broker is since it started, or since it heard of a newer epoch
    REPLICA     it follows the master of the epoch, if there is one
    PROMOTING   it was elected, and is about to be master
    MASTER      it takes messages
    STOPPED     it is gone

A new epoch leads from every state to REPLICA or PROMOTING, and from there `Led` to MASTER.

Rules, each with the reason why it is safe:

- **Epochs only grow.** What a coordinator says of an older epoch, or with a lower term than one heard before, is
  ignored: it was overtaken on its way, or comes from a coordinator that leads no more.
- **Step down first.** A master that hears of a newer epoch acknowledges nothing from that moment on; what it does in
  the new epoch comes after.
- **An epoch is led once.** A master that was started anew may have lost what was not on disk; in the same epoch
  nobody could tell its log from the one before. It leads only an epoch that its log has never seen, and that began
  after it registered for the first time since its start; it waits for an election until then.
- **A lease counts from when the beat was sent,** for the epoch in which it was sent, and ends with it. The clock is
  asked at the moment of an acknowledgement: a process that was paused resumes into its sockets before its timers.
- **No set without the coordinator's word.** A proposal of which nobody knows the outcome counts on until the set's
  epoch moves (replication/acks.py).

Sans-I/O and deterministic: no clock, no disk, no task. `handle` is called by one owner, which carries out the
instructions in their order (replicas.py, and simulations).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.errors import invariant


class Role(Enum):
    """See the picture in the module's text. STOPPED: nothing is done any more."""

    WAITING = "waiting"
    REPLICA = "replica"
    PROMOTING = "promoting"
    MASTER = "master"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class View:
    """A set as a coordinator sees it. `master_id` is None while nobody is master; `epoch` 0: nobody ever was."""

    term: int
    epoch: int
    set_epoch: int = 0
    members: frozenset[int] = frozenset()
    master_id: int | None = None
    master_address: str = ""
    master_ha_address: str = ""


# -- events --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Registered:
    """The coordinator took the registration (1003), in this epoch of the set: a beat tells the rest."""

    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Elected:
    """The coordinator has decided who is master (1002): a beat tells who."""


@dataclass(frozen=True, slots=True)
class Beaten:
    """The answer to a beat (9020) that was sent at `sent_ms`. `lease_ms` of 0: no lease."""

    view: View
    sent_ms: int
    lease_ms: int = 0


@dataclass(frozen=True, slots=True)
class Notified:
    """The coordinator says, unasked, what the set is now (1008)."""

    view: View


@dataclass(frozen=True, slots=True)
class MustRegister:
    """The coordinator does not know this process (2010)."""


@dataclass(frozen=True, slots=True)
class Led:
    """What `Lead` asked for is done: the epoch is on disk, and messages are taken."""

    epoch: int


@dataclass(frozen=True, slots=True)
class CannotLead:
    """What `Lead` asked for failed: the disk, or the log. Somebody else has to."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Superseded:
    """A replica follows a newer epoch than the one this broker is master of."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Proposed:
    """The sync-state set should change."""

    members: frozenset[int]
    set_epoch: int


@dataclass(frozen=True, slots=True)
class Altered:
    """The coordinator changed the set as proposed (1001) in this epoch."""

    epoch: int
    members: frozenset[int]
    set_epoch: int


@dataclass(frozen=True, slots=True)
class AlterRefused:
    """It did not, and will not."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AlterUnanswered:
    """Nobody knows whether it did."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """The broker ends cleanly."""


Event = (
    Registered
    | Elected
    | Beaten
    | Notified
    | MustRegister
    | Led
    | CannotLead
    | Superseded
    | Proposed
    | Altered
    | AlterRefused
    | AlterUnanswered
    | Tick
    | Stopping
)

# -- instructions --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Register:
    """Register with the coordinator (1003)."""


@dataclass(frozen=True, slots=True)
class Beat:
    """Report (9020): the epoch in which this broker acts, 0 while it knows of none."""

    epoch: int
    is_stopping: bool = False


@dataclass(frozen=True, slots=True)
class AskElection:
    """The set has no master that could act: ask for one (1002)."""


@dataclass(frozen=True, slots=True)
class Lead:
    """Be master of this epoch; say `Led` or `CannotLead`."""

    epoch: int
    members: frozenset[int]
    set_epoch: int


@dataclass(frozen=True, slots=True)
class Follow:
    """Be a replica of this master; an empty address: of nobody for now."""

    epoch: int
    master_id: int | None
    ha_address: str


@dataclass(frozen=True, slots=True)
class StepDown:
    """Acknowledge nothing any more and serve no replica, at once."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Decide:
    """The sync-state set is this now."""

    members: frozenset[int]
    set_epoch: int


@dataclass(frozen=True, slots=True)
class Propose:
    """Ask the coordinator to change the set (1001); say `Altered`, `AlterRefused` or `AlterUnanswered`."""

    epoch: int
    members: frozenset[int]
    set_epoch: int


@dataclass(frozen=True, slots=True)
class Forget:
    """A proposal came to nothing. `is_certain`: it never will be carried out."""

    is_certain: bool


Instruction = Register | Beat | AskElection | Lead | Follow | StepDown | Decide | Propose | Forget


class Membership:
    """See the module's text. `log_epoch`: the last epoch that the log knows of, 0 if it has none."""

    def __init__(self, broker_id: int, log_epoch: int = 0, *, beat_interval_ms: int = 500) -> None:
        self.broker_id = broker_id
        self.role = Role.WAITING
        # The newest epoch heard of, and the one in which this broker acts: 0 until it was told since it started.
        self.epoch = log_epoch
        self.acting_epoch = 0
        self.term = 0
        self.is_registered = False
        # What the coordinator said last, if it counts.
        self.view: View | None = None
        self.lease_until_ms = 0
        # Epochs up to this one may have been led by a process before this one.
        self._led_before = log_epoch
        self._was_registered = False
        self._beat_interval_ms = beat_interval_ms
        self._due_ms = 0
        self._is_proposing = False

    # -- questions -------------------------------------------------------------------------------------------

    @property
    def is_master(self) -> bool:
        return self.role is Role.MASTER

    def has_lease(self, now_ms: int) -> bool:
        """Whether nobody else can have been made master: what is acknowledged alone is safe."""
        return self.role is Role.MASTER and now_ms < self.lease_until_ms

    @property
    def is_outdated_metadata(self) -> bool:
        """Whether the coordinator is behind this broker's log: its metadata was lost or restored from a copy."""
        return self.view is not None and self.view.epoch < self.epoch

    # -- events ----------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ms: int) -> list[Instruction]:
        """What to do about it."""
        if self.role is Role.STOPPED:
            return []
        found = self._handle(event, now_ms)
        for step in found:
            if isinstance(step, Beat):
                self._due_ms = now_ms + self._beat_interval_ms
        return found

    def _handle(self, event: Event, now_ms: int) -> list[Instruction]:
        if isinstance(event, Tick):
            return self._tick(now_ms)
        if isinstance(event, Beaten):
            return self._beaten(event)
        if isinstance(event, Registered):
            if not self._was_registered:
                self._was_registered = True
                self._led_before = max(self._led_before, event.epoch)
            self.is_registered = True
            return [Beat(self.acting_epoch)]
        if isinstance(event, Elected):
            return [Beat(self.acting_epoch)]
        if isinstance(event, Notified):
            found = self._see(event.view)
            return [*found, Beat(self.acting_epoch)] if found else []
        if isinstance(event, MustRegister):
            self.is_registered = False
            return [Register()]
        if isinstance(event, Led):
            return self._led(event.epoch)
        if isinstance(event, CannotLead):
            return self._cannot_lead(event.epoch)
        if isinstance(event, Superseded):
            return self._superseded(event.epoch)
        if isinstance(event, Stopping):
            return self._stop()
        return self._about_the_set(event)

    def _tick(self, now_ms: int) -> list[Instruction]:
        if now_ms < self._due_ms:
            return []
        if not self.is_registered:
            self._due_ms = now_ms + self._beat_interval_ms
            return [Register()]
        found: list[Instruction] = [Beat(self.acting_epoch)]
        return [*found, AskElection()] if self._needs_election() else found

    def _needs_election(self) -> bool:
        """Whether nobody will be master unless somebody asks: there never was one, or it was this broker before its
        start."""
        if self.view is None or self.role is not Role.WAITING or self.view.epoch != self.epoch:
            return False
        return self.epoch == 0 or self.view.master_id == self.broker_id

    def _stop(self) -> list[Instruction]:
        epoch, was_registered = self.acting_epoch, self.is_registered
        self.role, self.acting_epoch, self.lease_until_ms = Role.STOPPED, 0, 0
        self._is_proposing = False
        # In this order: the lease is given back by a process that acknowledges nothing any more.
        found: list[Instruction] = [StepDown(epoch)]
        return [*found, Beat(epoch, is_stopping=True)] if was_registered else found

    # -- what the coordinator says ---------------------------------------------------------------------------

    def _beaten(self, event: Beaten) -> list[Instruction]:
        view = event.view
        found = self._see(view)
        counts = view.term == self.term and view.epoch == self.acting_epoch and self.role is Role.MASTER
        if counts and view.master_id == self.broker_id and event.lease_ms > 0:
            self.lease_until_ms = max(self.lease_until_ms, event.sent_ms + event.lease_ms)
        return [*found, Beat(self.acting_epoch)] if _changes_role(found) else found

    def _see(self, view: View) -> list[Instruction]:
        if view.term < self.term:
            return []
        self.term = view.term
        if view.epoch < self.epoch:
            self.view = view
            return []
        known, self.view = self.view, view
        if view.epoch > self.epoch or self.role is Role.WAITING:
            return self._enter(view)
        if self.role is Role.MASTER:
            return [Decide(view.members, view.set_epoch)]
        is_moved = known is None or known.master_ha_address != view.master_ha_address
        if self.role is Role.REPLICA and is_moved:
            return [Follow(view.epoch, view.master_id, view.master_ha_address)]
        return []

    def _enter(self, view: View) -> list[Instruction]:
        """A new epoch, or the first one since the start."""
        found: list[Instruction] = []
        if self.role in (Role.MASTER, Role.PROMOTING):
            found.append(StepDown(self.epoch))
        self.epoch = view.epoch
        self.lease_until_ms = 0
        self._is_proposing = False
        if view.epoch == 0:
            return [AskElection()]
        if view.master_id != self.broker_id:
            self.role, self.acting_epoch = Role.REPLICA, view.epoch
            return [*found, Follow(view.epoch, view.master_id, view.master_ha_address)]
        if view.epoch <= self._led_before:
            self.role, self.acting_epoch = Role.WAITING, 0
            return found
        self.role = Role.PROMOTING
        self._led_before = view.epoch
        return [*found, Lead(view.epoch, view.members, view.set_epoch)]

    # -- becoming master, and not being it any more ----------------------------------------------------------

    def _led(self, epoch: int) -> list[Instruction]:
        if self.role is not Role.PROMOTING or epoch != self.epoch:
            return []
        self.role, self.acting_epoch = Role.MASTER, epoch
        # The lease begins with the first beat of the new epoch.
        return [Beat(epoch)]

    def _cannot_lead(self, epoch: int) -> list[Instruction]:
        if self.role is not Role.PROMOTING or epoch != self.epoch:
            return []
        self.role, self.acting_epoch = Role.WAITING, 0
        return [StepDown(epoch), Beat(0)]

    def _superseded(self, epoch: int) -> list[Instruction]:
        if epoch <= self.epoch:
            return []
        was, self.epoch = self.epoch, epoch
        self.role, self.acting_epoch, self.lease_until_ms = Role.WAITING, 0, 0
        self._is_proposing = False
        return [StepDown(was), Beat(0)]

    # -- the sync-state set ----------------------------------------------------------------------------------

    def _about_the_set(self, event: Proposed | Altered | AlterRefused | AlterUnanswered) -> list[Instruction]:
        if isinstance(event, Proposed):
            if self.role is not Role.MASTER or self._is_proposing:
                # Not sent: the broker is still being promoted, or the answer to the proposal before is still out. The
                # tracker must know, or it would wait for an answer for ever and no replica could join.
                return [Forget(is_certain=True)]
            self._is_proposing = True
            return [Propose(self.epoch, event.members, event.set_epoch)]
        if self.role is not Role.MASTER or event.epoch != self.epoch:
            return []
        self._is_proposing = False
        if isinstance(event, Altered):
            return [Decide(event.members, event.set_epoch)]
        is_certain = isinstance(event, AlterRefused)
        # The next beat says what the set really is.
        return [Forget(is_certain), Beat(self.acting_epoch)]

    def validate(self) -> None:
        """What must hold between any two events; a simulation asks after each."""
        invariant(
            self.role is not Role.MASTER or self.acting_epoch == self.epoch, "a master acts in its epoch"
        )
        invariant(self.role is Role.MASTER or not self.lease_until_ms, "only a master has a lease")
        invariant(self.acting_epoch <= self.epoch, "nobody acts in an epoch that is still to come")
        invariant(self.role is Role.MASTER or not self._is_proposing, "only a master proposes")


def _changes_role(steps: list[Instruction]) -> bool:
    """Whether the coordinator should hear of it at once."""
    return any(isinstance(step, Follow | StepDown) for step in steps)
