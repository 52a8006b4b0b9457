"""One broker set: leases and elections, restarts, writes that fail or vanish, and leaders that come and go."""

import pytest

from penstock.coordinator.replica_sets import Phase
from penstock.coordinator.set_messages import AlterSyncSet, ApplyId, Clean, Elect
from penstock.coordinator.set_record import SetRecord
from penstock.coordinator.set_rules import SetPolicy
from tests.unit.coordinator.sets import FULL_MS, POLICY, Bench, SharedEntry, register, running_set

# -- leases --------------------------------------------------------------------------------------------------


def test_a_master_that_acts_in_the_epoch_is_granted_a_lease_and_nobody_else() -> None:
    bench = running_set()
    assert bench.beat(1).lease_ms == POLICY.lease_ms
    assert bench.beat(2).lease_ms == 0
    assert bench.beat(1, epoch=0).lease_ms == 0, "it does not act yet"


@pytest.mark.fault("F1")
@pytest.mark.invariant("I6")
def test_a_silent_master_is_replaced_when_its_lease_has_run_out_and_not_before() -> None:
    bench = running_set()
    bench.keep_alive(3_000, 1, 2, 3)
    assert bench.record.master_id == 1
    bench.beat(1)
    silent_since = bench.now_ms
    while bench.now_ms < silent_since + FULL_MS - 50:
        bench.beat(2, max_offset=500)
        bench.beat(3, max_offset=600)
        bench.advance(50)
    assert bench.record.master_id == 1, "the lease is still there"
    bench.advance(50)
    assert (bench.record.master_id, bench.record.master_epoch) == (3, 2), "the longest log"
    assert bench.record.sync_set == {3}
    (notice,) = bench.notices
    assert notice.record == bench.record
    assert notice.members == ((2, 102), (3, 103)), "whoever is there is told"


@pytest.mark.invariant("I6")
def test_a_dropped_connection_does_not_shorten_the_lease() -> None:
    bench = running_set()
    bench.beat(1)
    bench.do(bench.set.dropped(101, bench.now_ms))
    bench.keep_alive(1_500, 2, 3)
    assert bench.record.master_id == 1
    bench.keep_alive(1_000, 2, 3)
    assert bench.record.master_id == 2


@pytest.mark.invariant("I14")
def test_a_master_that_stops_cleanly_is_replaced_at_once() -> None:
    bench = running_set()
    bench.keep_alive(500, 1, 2, 3)
    bench.beat(1)
    assert bench.beat(1, is_stopping=True).lease_ms == 0
    assert (bench.record.master_id, bench.record.master_epoch) == (2, 2)
    assert [who for who, _ in bench.notices[0].members] == [2, 3]


@pytest.mark.fault("F2")
def test_a_stop_that_was_delayed_from_an_earlier_process_gives_nothing_back() -> None:
    bench = running_set()
    bench.code(register(1, incarnation=2, connection=201, epoch=1, max_offset=5))
    epoch = bench.record.master_epoch
    assert bench.record.master_id == 1
    assert bench.beat(1, incarnation=2, connection=201, epoch=epoch).lease_ms > 0
    assert bench.beat(1, incarnation=1, is_stopping=True).code == 2014
    bench.keep_alive(1_000, 2, 3)
    assert bench.record.master_epoch == epoch, "the later process keeps its lease"


def test_nobody_is_granted_a_lease_by_a_coordinator_that_is_not_sure_to_lead() -> None:
    bench = running_set()
    bench.is_sure = False
    answer = bench.beat(1)
    assert (answer.code, answer.lease_ms) == (0, 0)


def test_a_coordinator_that_was_unsure_for_a_while_elects_nobody_for_that() -> None:
    bench = running_set()
    bench.now_ms += 60_000
    bench.do(bench.set.resume(bench.now_ms))
    bench.advance(1_000)
    assert bench.record.master_id == 1
    bench.keep_alive(5_000, 1, 2, 3)
    assert (bench.record.master_id, bench.record.master_epoch) == (1, 1)


def test_a_master_alone_in_its_set_is_waited_for() -> None:
    bench = running_set(in_sync=1)
    bench.keep_alive(10_000, 2, 3)
    assert (bench.record.master_id, bench.record.master_epoch) == (1, 1)
    assert bench.beat(1).lease_ms > 0, "it goes on where it was"


def test_a_replica_that_comes_back_is_elected_when_nobody_was_there_before() -> None:
    bench = running_set()
    bench.advance(20_000)
    assert bench.record.master_id == 1
    bench.beat(3)
    assert bench.record.master_id == 3


def test_a_master_elected_without_acting_is_replaced_in_the_end() -> None:
    bench = running_set()
    bench.keep_alive(2_500, 2, 3)
    assert bench.record.master_id == 2
    bench.code(AlterSyncSet(2, 2, bench.record.set_epoch, frozenset((2, 3))))
    bench.keep_alive(POLICY.promotion_ms - 2_500, 2, 3, epoch=1)
    assert bench.record.master_id == 2, "promotion may take its time"
    bench.keep_alive(5_000, 2, epoch=1)
    assert bench.record.master_epoch > 2


# -- restarts ------------------------------------------------------------------------------------------------


@pytest.mark.fault("F1")
@pytest.mark.invariant("I7")
def test_a_master_that_was_started_anew_acts_only_in_a_new_epoch() -> None:
    bench = running_set(in_sync=1)
    bench.beat(1)
    assert bench.code(register(1, incarnation=2, epoch=1, max_offset=100)) == 0
    assert (bench.record.master_id, bench.record.master_epoch) == (1, 2), "at once: its predecessor is gone"
    assert bench.beat(1, incarnation=2, epoch=0).lease_ms == 0
    assert bench.beat(1, incarnation=2, epoch=2).lease_ms > 0


def test_the_same_process_may_register_twice() -> None:
    bench = running_set()
    assert bench.code(register(1)) == 0
    assert bench.record.master_epoch == 1
    assert bench.beat(1).lease_ms > 0


@pytest.mark.invariant("I1")
def test_a_restarted_master_gives_way_to_the_replica_with_the_longer_log() -> None:
    bench = running_set()
    bench.beat(1)
    bench.beat(2, max_offset=1_000)
    bench.code(register(1, incarnation=2, epoch=1, max_offset=900))
    assert bench.record.master_id == 2


@pytest.mark.fault("F6")
@pytest.mark.invariant("I1")
def test_a_member_that_lost_the_end_of_its_log_leaves_the_set() -> None:
    bench = running_set()
    bench.do(bench.set.dropped(102, bench.now_ms))
    bench.do(bench.set.dropped(103, bench.now_ms))
    bench.code(register(1, incarnation=2, epoch=1, max_offset=10**9, is_log_intact=False))
    assert bench.record.sync_set == {2, 3}
    bench.keep_alive(10_000, 1, incarnation=2, epoch=0)
    assert bench.record.master_epoch == 1, "whoever has everything is waited for"
    bench.beat(3, connection=203)
    assert bench.record.master_id == 3


def test_the_last_member_stays_in_the_set_whatever_it_lost() -> None:
    bench = running_set(in_sync=1)
    bench.code(register(1, incarnation=2, epoch=1, is_log_intact=False))
    assert (bench.record.master_id, bench.record.master_epoch) == (1, 2)


def test_a_shrunken_set_that_could_not_be_written_elects_nobody_who_lost_messages() -> None:
    bench = running_set(in_sync=2)
    bench.keep_alive(500, 1, 2, 3)
    bench.writes = "fail"
    assert bench.code(register(1, incarnation=2, epoch=1, max_offset=10**9, is_log_intact=False)) == 14
    bench.writes = "ok"
    bench.keep_alive(5_000, 2, 3)
    assert bench.record.master_id == 2


def test_a_process_that_did_not_register_is_told_to() -> None:
    bench = running_set()
    answer = bench.beat(2, incarnation=2)
    assert answer.code == 2010
    assert bench.beat(9).code == 2010
    assert bench.beat(2).code == 0


def test_two_processes_with_one_id_are_not_taken_for_a_restart() -> None:
    bench = running_set()
    bench.beat(1)
    answer = bench.ask(register(1, incarnation=7, address="10.9.9.9:10911", connection=900))
    assert answer is not None
    assert answer.code == 2014
    assert "10.0.0.1:10911" in answer.remark
    assert bench.beat(1).lease_ms > 0


def test_a_broker_that_moved_is_found_at_its_new_address() -> None:
    bench = running_set()
    bench.do(bench.set.dropped(102, bench.now_ms))
    assert bench.code(register(2, incarnation=2, address="10.9.9.9:10911", connection=900)) == 0
    assert bench.record.replicas[2].address == "10.9.9.9:10911"
    bench.beat(3, ha_address="10.0.0.3:20912")
    assert SetRecord.decode(bench.entry.value or b"").replicas[3].ha_address == "10.0.0.3:20912"


def test_a_broker_from_a_later_epoch_than_the_metadata_is_not_led() -> None:
    bench = running_set()
    answer = bench.beat(1, epoch=9)
    assert (answer.code, answer.lease_ms) == (2000, 0)
    assert "older than the brokers" in answer.remark


# -- designated ----------------------------------------------------------------------------------------------


@pytest.mark.invariant("I6")
def test_a_designated_master_waits_until_the_lease_has_run_out() -> None:
    bench = running_set()
    bench.keep_alive(500, 1, 2, 3)
    bench.beat(1)
    granted = bench.now_ms
    assert bench.ask(Elect(3, is_designated=True)) is None
    assert bench.beat(1).lease_ms == 0, "it is extended no more"
    while bench.record.master_id == 1:
        for one in (1, 2, 3):
            bench.beat(one)
        bench.advance(100)
    assert bench.now_ms >= granted + FULL_MS
    assert bench.record.master_id == 3
    assert [answer.record for answer in bench.answers.values()][-1] == bench.record


def test_a_designated_master_that_dies_meanwhile_changes_nothing() -> None:
    bench = running_set()
    bench.beat(1)
    bench.ask(Elect(3, is_designated=True))
    bench.do(bench.set.dropped(103, bench.now_ms))
    bench.keep_alive(3_000, 1, 2)
    assert (bench.record.master_id, bench.record.master_epoch) == (1, 1)
    assert bench.beat(1).lease_ms > 0
    assert 2012 in {answer.code for answer in bench.answers.values()}


# -- RocketMQ's brokers --------------------------------------------------------------------------------------


def test_a_broker_of_rocketmq_is_replaced_at_once_when_its_connection_drops() -> None:
    bench = running_set()
    for one in (1, 2):
        bench.set.members.forget(one)
        bench.beat(one, incarnation=0, hold_ms=10_000)
    bench.advance(8_000)
    assert bench.record.master_id == 1, "its own timeout counts"
    bench.do(bench.set.dropped(101, bench.now_ms))
    assert bench.record.master_id == 2


# -- writes --------------------------------------------------------------------------------------------------


def test_what_is_asked_during_a_write_waits_and_is_judged_by_its_outcome() -> None:
    bench = running_set()
    bench.writes = "keep"
    bench.beat(1, is_stopping=True)
    assert bench.set.phase is Phase.WRITING
    late = AlterSyncSet(1, 1, bench.record.set_epoch, frozenset((1, 2)))
    assert bench.ask(late) is None
    bench.writes = "ok"
    bench.release()
    assert bench.record.master_id == 2
    assert max(bench.answers.items())[1].code == 2002, "it is not the master any more"


def test_a_request_that_expired_while_it_waited_is_not_carried_out() -> None:
    bench = running_set()
    bench.writes = "keep"
    bench.ask(ApplyId(4, "x"))
    assert bench.ask(AlterSyncSet(1, 1, bench.record.set_epoch, frozenset((1,))), wait_ms=1_000) is None
    bench.now_ms += 1_001
    bench.writes = "ok"
    bench.release()
    assert bench.record.sync_set == {1, 2, 3}


@pytest.mark.invariant("I6")
def test_no_lease_is_granted_while_an_election_is_being_written() -> None:
    bench = running_set()
    bench.keep_alive(500, 1, 2, 3)
    bench.writes = "keep"
    bench.keep_alive(3_000, 2, 3)
    assert bench.set.phase is Phase.WRITING
    assert bench.beat(1).lease_ms == 0
    bench.writes = "ok"
    bench.release()
    assert bench.record.master_id == 2


def test_a_lease_is_granted_while_something_else_is_being_written() -> None:
    bench = running_set()
    bench.writes = "keep"
    bench.ask(ApplyId(4, "x"))
    assert bench.beat(1).lease_ms > 0


@pytest.mark.fault("F11")
@pytest.mark.invariant("I6")
@pytest.mark.parametrize("fate", ["lost", "unknown"])
def test_an_election_of_unknown_outcome_is_settled_before_any_lease(fate: str) -> None:
    bench = running_set()
    bench.keep_alive(500, 1, 2, 3)
    bench.reads, bench.writes = "keep", fate
    bench.keep_alive(3_000, 2, 3)
    assert bench.set.phase is Phase.LOADING
    assert bench.beat(1).lease_ms == 0, "it may have been replaced"
    bench.reads = "ok"
    bench.release()
    if fate == "lost":
        # The old master reported again in time, so nobody has to be elected.
        assert (bench.record.master_id, bench.beat(1).lease_ms) == (1, POLICY.lease_ms)
    else:
        assert bench.record.master_id == 2
        assert bench.notices, "those concerned are told"
        assert bench.beat(1).lease_ms == 0


@pytest.mark.fault("F11")
def test_without_the_metadata_nothing_changes_and_requests_are_refused() -> None:
    bench = running_set()
    bench.writes = "fail"
    assert bench.code(AlterSyncSet(1, 1, bench.record.set_epoch, frozenset((1,)))) == 14
    bench.keep_alive(3_000, 2, 3)
    assert bench.record.master_id == 1
    bench.writes = "ok"
    bench.keep_alive(1_000, 2, 3)
    assert bench.record.master_id == 2, "the election is tried again"


def test_an_entry_that_cannot_be_read_is_read_again_later() -> None:
    entry = running_set().entry
    bench = Bench(term=2, entry=entry, reads="fail")
    assert bench.set.phase is Phase.WAITING
    assert bench.beat(1).code == 2, "busy: it asks again"
    bench.reads = "ok"
    bench.advance(1_000)
    assert bench.set.phase is Phase.READY


def test_too_many_waiting_requests_are_refused() -> None:
    bench = running_set()
    bench.writes = "keep"
    bench.ask(ApplyId(4, "x"))
    codes = [
        answer.code for answer in (bench.ask(ApplyId(5, "y")) for _ in range(1_001)) if answer is not None
    ]
    assert codes == [2]


# -- leaders -------------------------------------------------------------------------------------------------


@pytest.mark.fault("F1")
@pytest.mark.invariant("I6")
def test_a_new_leader_waits_for_a_full_lease_before_it_elects() -> None:
    old = running_set()
    old.beat(1)
    new = Bench(term=2, entry=old.entry, now_ms=old.now_ms + 10)
    took_over = new.now_ms
    new.beat(2)
    new.beat(3)
    while new.record.master_id == 1:
        for one in (2, 3):
            new.beat(one)
        new.advance(50)
    assert new.now_ms >= took_over + FULL_MS


@pytest.mark.fault("F12")
@pytest.mark.invariant("I6")
def test_what_a_deposed_leader_writes_fails() -> None:
    old = running_set()
    old.keep_alive(500, 1, 2, 3)
    old.writes = "keep"
    old.keep_alive(3_000, 2, 3)
    new = Bench(term=2, entry=old.entry, now_ms=old.now_ms)
    assert new.beat(1).lease_ms > 0, "the new leader hears the master"
    old.writes = "ok"
    old.release()
    assert old.deposed == 2
    assert old.set.phase is Phase.ENDED
    assert old.beat(1).code == 2007
    assert old.code(Elect(2)) == 2007
    assert SetRecord.decode(old.entry.value or b"").master_id == 1


def test_requests_that_wait_at_a_deposed_leader_are_refused() -> None:
    old = running_set()
    old.writes = "keep"
    old.ask(ApplyId(4, "x"))
    old.ask(ApplyId(4, "y"))
    Bench(term=2, entry=old.entry, now_ms=old.now_ms)
    old.writes = "ok"
    old.release()
    assert [answer.code for _, answer in sorted(old.answers.items())[-2:]] == [2007, 2007]


def test_a_new_leader_goes_on_with_whoever_runs() -> None:
    old = running_set()
    new = Bench(term=2, entry=old.entry, now_ms=old.now_ms)
    new.keep_alive(20_000, 1, 2, 3)
    assert (new.record.master_id, new.record.master_epoch, new.record.term) == (1, 1, 2)


def test_a_restarted_master_at_a_new_leader_asks_for_its_election() -> None:
    """The leader at which it registered died before it could elect."""
    old = running_set(in_sync=1)
    new = Bench(term=2, entry=old.entry, now_ms=old.now_ms)
    assert new.beat(1, incarnation=2, epoch=0).lease_ms == 0
    assert new.code(Elect(1)) == 2011, "an earlier process may have a lease"
    new.keep_alive(FULL_MS - 600, 1, incarnation=2, epoch=0)
    assert new.record.master_epoch == 1
    new.keep_alive(1_000, 1, incarnation=2, epoch=0)
    assert (new.record.master_id, new.record.master_epoch) == (1, 2)


@pytest.mark.invariant("I6")
def test_a_registration_ends_no_lease_of_which_a_new_leader_knows_nothing() -> None:
    """The registration may have been delayed, and the process that sent it may have been granted a lease since."""
    old = running_set()
    new = Bench(term=2, entry=old.entry, now_ms=old.now_ms)
    new.beat(2)
    new.code(register(1, incarnation=2, epoch=1))
    assert (new.record.master_id, new.record.master_epoch) == (1, 1)


# -- proposals whose outcome is not known --------------------------------------------------------------------


@pytest.mark.fault("F11")
@pytest.mark.invariant("I1")
def test_a_proposal_that_was_carried_out_is_never_called_refused() -> None:
    proposal = AlterSyncSet(1, 1, 2, frozenset((1, 2)))
    bench = running_set()
    bench.writes = "unknown"
    assert bench.code(proposal) == 0, "read again, and found as it was asked for"
    assert bench.code(proposal) == 0, "asked once more, because the answer was lost"
    assert bench.record.set_epoch == 3

    bench = running_set()
    bench.reads, bench.writes = "keep", "unknown"
    assert bench.ask(proposal) is None
    Bench(term=2, entry=bench.entry, now_ms=bench.now_ms)
    bench.reads = "ok"
    bench.release()
    assert bench.deposed == 2
    assert max(bench.answers.items())[1].code == 14, "2007 would say that it was not carried out"


def test_a_proposal_that_was_lost_is_carried_out_once_that_is_known() -> None:
    bench = running_set()
    bench.writes = "lost"
    assert bench.code(AlterSyncSet(1, 1, 2, frozenset((1, 2)))) == 0
    assert (bench.record.sync_set, bench.record.set_epoch) == ({1, 2}, 3)


# -- the rest ------------------------------------------------------------------------------------------------


def test_a_set_whose_brokers_are_all_cleaned_is_gone_and_may_be_made_again() -> None:
    bench = running_set()
    assert bench.code(Clean(None)) == 2009, "they live"
    assert bench.code(Clean(None, is_living_allowed=True)) == 0
    assert bench.entry.value is None
    assert bench.beat(1).code == 2010
    assert bench.code(ApplyId(1, "new")) == 0
    assert bench.record.master_epoch == 0


def test_cleaning_the_master_elects_another_when_its_lease_is_over() -> None:
    bench = running_set()
    bench.beat(1)
    bench.do(bench.set.dropped(101, bench.now_ms))
    assert bench.code(Clean(frozenset((1,)))) == 0
    assert bench.record.master_id is None
    bench.keep_alive(500, 2, 3)
    assert bench.record.master_id is None
    bench.keep_alive(2_500, 2, 3)
    assert bench.record.master_id == 2


def test_unclean_elections_are_off_unless_they_are_allowed() -> None:
    for allowed in (False, True):
        bench = running_set(in_sync=1, policy=SetPolicy(is_unclean_allowed=allowed))
        bench.keep_alive(5_000, 2, 3)
        assert bench.record.master_id == (2 if allowed else 1)


def test_two_leaders_cannot_both_create_a_set() -> None:
    entry = SharedEntry()
    one, two = Bench(term=1, entry=entry), Bench(term=2, entry=entry)
    assert two.code(ApplyId(1, "two")) == 0
    assert one.code(ApplyId(1, "one")) == 2007
    assert one.deposed == 2
