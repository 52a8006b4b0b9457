"""The rules of a broker set: RocketMQ's order of checks and codes, and where ours are stricter."""

from typing import Any

import pytest

from penstock.coordinator import set_rules
from penstock.coordinator.leases import Member
from penstock.coordinator.set_messages import AlterSyncSet, ApplyId, Clean, Elect, Register
from penstock.coordinator.set_record import Replica, SetRecord
from penstock.coordinator.set_rules import Changed, Decision, Refused, Unchanged
from penstock.errors import MetadataFormatError
from tests.unit.coordinator.sets import record_of


def changed(decision: Decision) -> SetRecord:
    assert isinstance(decision, Changed), decision
    assert decision.record is not None
    return decision.record


def code_of(decision: Decision) -> int:
    assert isinstance(decision, Refused), decision
    assert decision.remark
    return decision.code


# -- the record ----------------------------------------------------------------------------------------------


def test_a_record_reads_as_it_was_written() -> None:
    record = record_of(term=9, master_epoch=4)
    assert SetRecord.decode(record.encode()) == record
    assert record.path == "/brokers/c/broker-a"
    empty = SetRecord("c", "n")
    assert SetRecord.decode(empty.encode()) == empty
    assert (empty.master, record.master) == (None, record.replicas[1])


@pytest.mark.fault("F7")
@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        record_of().encode().replace(b'"format":1', b'"format":2'),
        record_of().encode().replace(b'"syncStateSet":[1,2,3]', b'"syncStateSet":[1,9]'),
        record_of().encode().replace(b'"nextId":4', b'"nextId":"x"'),
    ],
)
def test_what_is_no_record_is_not_guessed_at(value: bytes) -> None:
    with pytest.raises(MetadataFormatError, match="/brokers/c/n cannot be read"):
        SetRecord.decode(value, "/brokers/c/n")


# -- ids -----------------------------------------------------------------------------------------------------


def apply(record: SetRecord | None, broker_id: int, check_code: str = "x", limit: int = 32) -> Decision:
    return set_rules.apply_id(record, "c", "broker-a", ApplyId(broker_id, check_code), limit)


def test_ids_are_given_in_turn_and_once() -> None:
    assert code_of(apply(None, 2)) == 2014
    first = changed(apply(None, 1))
    assert (first.next_id, first.replicas) == (2, {1: Replica(check_code="x")})
    assert isinstance(apply(first, 1), Unchanged), "the same code asks again"
    assert code_of(apply(first, 1, "other")) == 2014
    assert code_of(apply(first, 3)) == 2014
    second = changed(apply(first, 2, "y"))
    assert (second.next_id, sorted(second.replicas)) == (3, [1, 2])
    assert code_of(apply(second, 0)) == code_of(apply(second, -1)) == 2014


def test_an_id_that_was_cleaned_may_be_taken_again_and_the_next_one_is_still_new() -> None:
    record = changed(set_rules.clean(record_of(), Clean(frozenset((2,))), lambda _: False))
    again = changed(apply(record, 2))
    assert (sorted(again.replicas), again.next_id) == ([1, 2, 3], 4)


@pytest.mark.abuse("A14")
def test_a_set_has_so_many_brokers_at_most() -> None:
    decision = apply(record_of(), 4, limit=3)
    assert code_of(decision) == 2014
    assert "limit" in decision.remark  # type: ignore[union-attr]


# -- register ------------------------------------------------------------------------------------------------


def test_a_broker_without_an_id_cannot_register() -> None:
    assert code_of(set_rules.register(record_of(), Register(9, "h:1"))) == 2010


def test_registering_changes_addresses_only_where_they_differ() -> None:
    record = record_of()
    assert isinstance(set_rules.register(record, Register(1, "10.0.0.1:10911")), Unchanged)
    moved = changed(set_rules.register(record, Register(1, "10.0.0.9:1")))
    assert moved.replicas[1] == Replica("10.0.0.9:1", "10.0.0.1:10912", "code-1")


@pytest.mark.parametrize(
    ("broker_id", "before", "after"),
    [(2, {1, 2, 3}, {1, 3}), (1, {1, 2}, {2}), (1, {1}, {1}), (3, {1, 2}, {1, 2})],
)
def test_a_log_that_lost_its_end_leaves_the_set_unless_it_is_alone(
    broker_id: int, before: set[int], after: set[int]
) -> None:
    record = record_of(sync_set=frozenset(before))
    decision = set_rules.register(
        record, Register(broker_id, record.replicas[broker_id].address, is_log_intact=False)
    )
    found = record if isinstance(decision, Unchanged) else changed(decision)
    assert found.sync_set == after
    assert found.set_epoch == record.set_epoch + (before != after)


# -- alter ---------------------------------------------------------------------------------------------------


def alter(record: SetRecord, *members: int, alive: bool = True, **changes: Any) -> Decision:
    values = {"master_id": 1, "master_epoch": 1, "set_epoch": 2, **changes}
    return set_rules.alter_sync_set(
        record, AlterSyncSet(**values, members=frozenset(members)), lambda _: alive
    )


def test_a_master_changes_its_set() -> None:
    record = changed(alter(record_of(), 1, 2))
    assert (record.sync_set, record.set_epoch, record.master_epoch) == ({1, 2}, 3, 1)
    assert changed(alter(record, 1, 2, 3, set_epoch=3)).sync_set == {1, 2, 3}


@pytest.mark.parametrize(
    ("members", "changes", "code"),
    [
        ((1, 2, 3), {"master_id": 9, "master_epoch": 9, "set_epoch": 9}, 2013),
        ((1, 9), {"master_id": 2, "master_epoch": 9, "set_epoch": 9}, 2002),
        ((1, 9), {"master_epoch": 9, "set_epoch": 9}, 2000),
        ((1, 9), {"set_epoch": 9}, 2001),
        ((2, 9), {}, 2003),
        ((2, 3), {}, 2013),
        ((), {}, 2013),
    ],
)
def test_proposals_are_refused_in_rocketmqs_order(
    members: tuple[int, ...], changes: dict[str, int], code: int
) -> None:
    assert code_of(alter(record_of(), *members, **changes)) == code


def test_only_new_members_have_to_be_alive() -> None:
    record = record_of(sync_set=frozenset((1, 2)))
    assert code_of(alter(record, 1, 3, alive=False)) == 2006
    assert changed(alter(record_of(), 1, 2, alive=False)).sync_set == {1, 2}


# -- elect ---------------------------------------------------------------------------------------------------


def member(broker_id: int, **changes: Any) -> Member:
    return Member(broker_id, heard_ms=0, silent_ms=1, **changes)


def elect(
    record: SetRecord, *alive: Member, fit: bool = False, unclean: bool = False, **request: Any
) -> Decision:
    return set_rules.elect(
        record,
        Elect(**request),
        {one.broker_id: one for one in alive},
        is_master_fit=fit,
        is_unclean_allowed=unclean,
    )


def test_the_first_who_asks_becomes_the_first_master() -> None:
    fresh = record_of(master_id=None, master_epoch=0, set_epoch=0, sync_set=frozenset())
    record = changed(elect(fresh, broker_id=2))
    assert (record.master_id, record.master_epoch, record.set_epoch, record.sync_set) == (2, 1, 1, {2})
    assert code_of(elect(fresh)) == 2004, "nobody asked"
    assert code_of(elect(fresh, broker_id=9)) == 2010


@pytest.mark.invariant("I1")
def test_only_living_members_of_the_set_are_elected() -> None:
    record = record_of(sync_set=frozenset((1, 2)))
    assert changed(elect(record, member(2), member(3, max_offset=10**9))).master_id == 2
    assert code_of(elect(record, member(3))) == 2004
    assert changed(elect(record, member(3), unclean=True)).master_id == 3
    assert changed(elect(record, member(2), member(3, max_offset=9), unclean=True)).master_id == 2


@pytest.mark.parametrize(
    ("two", "three", "wanted"),
    [
        ({"log_epoch": 1, "max_offset": 900}, {"log_epoch": 2, "max_offset": 5}, 3),
        ({"max_offset": 900}, {"max_offset": 901}, 3),
        ({"priority": 5}, {"priority": 4}, 3),
        ({"max_offset": 1, "priority": 5}, {"priority": 4}, 2),
        ({}, {}, 2),
    ],
)
def test_the_best_candidate(two: dict[str, int], three: dict[str, int], wanted: int) -> None:
    assert changed(elect(record_of(), member(3, **three), member(2, **two))).master_id == wanted


def test_a_master_that_is_there_stays_unless_another_is_designated() -> None:
    there = [member(1), member(2)]
    assert code_of(elect(record_of(), *there, fit=True)) == 2011
    assert code_of(elect(record_of(), *there, fit=True, broker_id=2)) == 2011
    assert code_of(elect(record_of(), *there, fit=True, broker_id=1, is_designated=True)) == 2011
    assert changed(elect(record_of(), *there, fit=True, broker_id=2, is_designated=True)).master_id == 2
    assert code_of(elect(record_of(), *there, fit=True, broker_id=3, is_designated=True)) == 2012
    outside = record_of(sync_set=frozenset((1,)))
    assert code_of(elect(outside, *there, fit=True, broker_id=2, is_designated=True)) == 2012


# -- clean ---------------------------------------------------------------------------------------------------


def clean(record: SetRecord, *ids: int, living: set[int] | None = None, force: bool = False) -> Decision:
    request = Clean(frozenset(ids) if ids else None, is_living_allowed=force)
    return set_rules.clean(record, request, lambda one: one in (living or set()))


def test_brokers_that_are_gone_are_forgotten() -> None:
    record = changed(clean(record_of(), 3))
    assert (sorted(record.replicas), record.sync_set, record.set_epoch, record.master_id) == (
        [1, 2],
        {1, 2},
        3,
        1,
    )
    outside = record_of(sync_set=frozenset((1, 2)))
    assert changed(clean(outside, 3)).set_epoch == outside.set_epoch
    assert changed(clean(record_of(), 1)).master_id is None
    everyone = clean(record_of())
    assert isinstance(everyone, Changed)
    assert everyone.record is None


def test_living_brokers_are_cleaned_only_if_told() -> None:
    assert code_of(clean(record_of(), 2, living={2})) == 2009
    assert changed(clean(record_of(), 2, living={2}, force=True)).sync_set == {1, 3}
    assert code_of(clean(record_of(), 9)) == 2009


@pytest.mark.invariant("I1")
def test_the_last_complete_copy_is_not_cleaned_away() -> None:
    record = record_of(sync_set=frozenset((1,)))
    assert code_of(clean(record, 1)) == 2009
    assert (
        changed(clean(record_of(sync_set=frozenset(), master_epoch=0, master_id=None), 1)).sync_set == set()
    )
