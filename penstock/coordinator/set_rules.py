"""The rules by which a broker set changes, as pure functions: a record and a request in, a new one or a refusal out.

They are RocketMQ's controller's (ids, sync-state sets, elections, cleaning), in its order and with its codes, so
that its administration tools and brokers understand every answer. Where ours are stricter, the function says why.

Why an election keeps every replicated acknowledgement. Such an acknowledgement needs all members of the sync-state
set, where a set that is being changed counts with both its old and its new members. Only a member of that set is
ever elected, so whoever is elected has the message. The first frame that a replica gets in the new epoch makes it
deaf to masters of older ones; and the new master alone begins as the new set, which others join only when they have
all it has. So an older master completes no acknowledgement after the election.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from penstock.coordinator.leases import Member
from penstock.coordinator.set_messages import AlterSyncSet, ApplyId, Clean, Elect, Register
from penstock.coordinator.set_record import FIRST_ID, Replica, SetRecord
from penstock.protocol.codes import ResponseCode

IsAlive = Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class SetPolicy:
    """Times and limits of broker sets; options.py explains them."""

    lease_ms: int = 2_000
    margin_ms: int = 100
    silent_ms: int = 2_000
    promotion_ms: int = 10_000
    retry_ms: int = 500
    replicas_max: int = 32
    is_unclean_allowed: bool = False


@dataclass(frozen=True, slots=True)
class Changed:
    """The request is granted by this record; None if nothing is left of the set."""

    record: SetRecord | None


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The request is granted by what is so already."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The request is refused."""

    code: int
    remark: str


Decision = Changed | Unchanged | Refused


def apply_id(
    record: SetRecord | None, cluster: str, name: str, request: ApplyId, replicas_max: int
) -> Decision:
    """An id is given once. The same check code may ask for its id again: its first answer may have been lost.

    Stricter than RocketMQ: ids are given out in turn, so that no request makes the next one run out of numbers.
    """
    if record is None:
        if request.broker_id != FIRST_ID:
            return Refused(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                f"the first broker of {name} must apply for the id {FIRST_ID}, not {request.broker_id}",
            )
        record = SetRecord(cluster, name)
    known = record.replicas.get(request.broker_id)
    if known is not None:
        if known.check_code == request.check_code:
            return Unchanged()
        return Refused(
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"the id {request.broker_id} of {name} is taken; ask for the next one",
        )
    if not FIRST_ID <= request.broker_id <= record.next_id:
        return Refused(
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"the next id of {name} is {record.next_id}, not {request.broker_id}",
        )
    if len(record.replicas) >= replicas_max:
        return Refused(
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"{name} has {len(record.replicas)} brokers, which is the limit; clean those that are gone (1011)",
        )
    replicas = {**record.replicas, request.broker_id: Replica(check_code=request.check_code)}
    return Changed(replace(record, replicas=replicas, next_id=max(record.next_id, request.broker_id + 1)))


def register(record: SetRecord, request: Register) -> Decision:
    """A broker says where it is, and whether its log is whole.

    A member of the sync-state set whose log may have lost its end (power failure without synchronous flush) no longer
    has everything that was acknowledged with its help. It leaves the set, unless it is the only one in it: then
    nobody has more.
    """
    known = record.replicas.get(request.broker_id)
    if known is None:
        return Refused(
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            f"{record.name} has no broker {request.broker_id}; apply for an id first",
        )
    changed = located(record, request.broker_id, request.address, request.ha_address)
    rest = changed.sync_set - {request.broker_id}
    if not request.is_log_intact and rest and rest != changed.sync_set:
        changed = replace(changed, sync_set=rest, set_epoch=changed.set_epoch + 1)
    return Unchanged() if changed is record else Changed(changed)


def located(record: SetRecord, broker_id: int, address: str, ha_address: str | None) -> SetRecord:
    """The record with a broker's addresses; the same object if they are known."""
    known = record.replicas[broker_id]
    moved = replace(
        known,
        address=address or known.address,
        ha_address=known.ha_address if ha_address is None else ha_address,
    )
    if moved == known:
        return record
    return replace(record, replicas={**record.replicas, broker_id: moved})


def alter_sync_set(record: SetRecord, request: AlterSyncSet, is_alive: IsAlive) -> Decision:
    """In RocketMQ's order of checks, with two differences. Only members that are new have to be alive: a master that
    drops one dead member need not know yet that another one has died too. And a proposal that was carried out, but
    whose answer was lost, is granted again: refused, it would let its master believe that the set is the old one."""
    is_carried_out = (record.master_id, record.master_epoch, record.set_epoch, record.sync_set) == (
        request.master_id,
        request.master_epoch,
        request.set_epoch + 1,
        request.members,
    )
    if is_carried_out:
        return Unchanged()
    if request.members == record.sync_set:
        return Refused(
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "the sync-state set is this one already"
        )
    if request.master_id != record.master_id:
        return Refused(
            ResponseCode.CONTROLLER_INVALID_MASTER,
            f"the master of {record.name} is {record.master_id}, not {request.master_id}",
        )
    if request.master_epoch != record.master_epoch:
        return Refused(
            ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
            f"the master epoch of {record.name} is {record.master_epoch}, not {request.master_epoch}",
        )
    if request.set_epoch != record.set_epoch:
        return Refused(
            ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            f"the set epoch of {record.name} is {record.set_epoch}, not {request.set_epoch}",
        )
    for broker_id in sorted(request.members):
        if broker_id not in record.replicas:
            return Refused(
                ResponseCode.CONTROLLER_INVALID_REPLICAS, f"{record.name} has no broker {broker_id}"
            )
        if broker_id not in record.sync_set and not is_alive(broker_id):
            return Refused(
                ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, f"broker {broker_id} of {record.name} is not alive"
            )
    if request.master_id not in request.members:
        return Refused(
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "the master must be in the sync-state set"
        )
    return Changed(replace(record, sync_set=request.members, set_epoch=record.set_epoch + 1))


def elect(
    record: SetRecord,
    request: Elect,
    alive: Mapping[int, Member],
    *,
    is_master_fit: bool,
    is_unclean_allowed: bool,
) -> Decision:
    """Who is master from now on. The caller has made sure that the lease of the last one has run out.

    `is_master_fit`: the present master is there and acts. RocketMQ then leaves it, and so do we, unless another one
    is designated. A set that never had a master takes the one who asks: nothing was acknowledged yet.

    Where no candidate is there, RocketMQ clears the master and counts the epoch up. Ours stays as it is: the next
    member of the set that reports is elected, or is the old master, which goes on where it was.
    """
    asking = request.broker_id
    if asking is not None and asking not in record.replicas:
        return Refused(
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            f"{record.name} has no broker {asking}; apply for an id first",
        )
    if is_master_fit and not (request.is_designated and asking != record.master_id):
        return Refused(
            ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
            f"the master of {record.name} is {record.master_id} and lives",
        )
    if record.master_epoch == 0:
        chosen = asking
    elif request.is_designated:
        if asking not in record.sync_set or asking not in alive:
            return Refused(
                ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
                f"broker {asking} is no living member of the sync-state set {record.sync_ids} of {record.name}",
            )
        chosen = asking
    else:
        chosen = _best(alive, record.sync_set)
        if chosen is None and is_unclean_allowed:
            chosen = _best(alive, record.replicas)
    if chosen is None:
        return Refused(
            ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE,
            f"no member of the sync-state set {record.sync_ids} of {record.name} is alive",
        )
    return Changed(
        replace(
            record,
            master_id=chosen,
            master_epoch=record.master_epoch + 1,
            sync_set=frozenset((chosen,)),
            set_epoch=record.set_epoch + 1,
        )
    )


def _best(alive: Mapping[int, Member], among: Collection[int]) -> int | None:
    """The latest epoch, then the longest log, then the smallest priority number; of equals the smallest id."""
    candidates = [member for broker_id, member in alive.items() if broker_id in among]
    if not candidates:
        return None
    best = min(candidates, key=lambda one: (-one.log_epoch, -one.max_offset, one.priority, one.broker_id))
    return best.broker_id


def clean(record: SetRecord, request: Clean, is_alive: IsAlive) -> Decision:
    """Forget brokers that will not come back.

    Stricter than RocketMQ: the last members of the sync-state set cannot be cleaned away while other replicas are
    left, because those others may lack acknowledged messages and nobody could ever tell.
    """
    wanted = frozenset(record.replicas) if request.broker_ids is None else request.broker_ids
    strangers = wanted - record.replicas.keys()
    if strangers:
        return Refused(
            ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA,
            f"{record.name} has no broker {', '.join(map(str, sorted(strangers)))}",
        )
    living = sorted(broker_id for broker_id in wanted if is_alive(broker_id))
    if living and not request.is_living_allowed:
        return Refused(
            ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA,
            f"broker {', '.join(map(str, living))} of {record.name} is alive; stop it first",
        )
    left = {broker_id: replica for broker_id, replica in record.replicas.items() if broker_id not in wanted}
    if not left:
        return Changed(None)
    rest = record.sync_set - wanted
    if not rest and record.master_epoch > 0:
        return Refused(
            ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA,
            f"the others of {record.name} may lack messages: no member of {record.sync_ids} would be left; elect "
            "another master first (coordinator.unclean_elections allows it where they are lost)",
        )
    return Changed(
        replace(
            record,
            replicas=left,
            sync_set=rest,
            set_epoch=record.set_epoch + (rest != record.sync_set),
            master_id=None if record.master_id in wanted else record.master_id,
        )
    )
