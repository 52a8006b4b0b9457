"""A broker in its set without any I/O: every transition, and what must never happen."""

from __future__ import annotations

import pytest

from penstock.broker.membership import (
    Altered,
    AlterRefused,
    AlterUnanswered,
    AskElection,
    Beat,
    Beaten,
    CannotLead,
    Decide,
    Elected,
    Event,
    Follow,
    Forget,
    Instruction,
    Lead,
    Led,
    Membership,
    MustRegister,
    Notified,
    Propose,
    Proposed,
    Register,
    Registered,
    Role,
    StepDown,
    Stopping,
    Superseded,
    Tick,
    View,
)

ME = 1
LEASE_MS = 2_000


class Member:
    """A membership that is validated after each event."""

    def __init__(self, log_epoch: int = 0) -> None:
        self.core = Membership(ME, log_epoch)
        self.now_ms = 10_000

    def tell(self, *events: Event) -> list[Instruction]:
        found: list[Instruction] = []
        for event in events:
            found += self.core.handle(event, self.now_ms)
            self.core.validate()
        return found

    def beaten(self, one: View, lease_ms: int = 0, sent_ms: int | None = None) -> list[Instruction]:
        return self.tell(Beaten(one, self.now_ms if sent_ms is None else sent_ms, lease_ms))


def view(epoch: int, master: int | None, *, term: int = 1, set_epoch: int = 1, ha: str = "") -> View:
    address = ha or (f"10.0.0.{master}:10912" if master is not None else "")
    members = frozenset() if master is None else frozenset((master,))
    return View(term, epoch, set_epoch, members, master, "", address)


def registered(log_epoch: int = 0) -> Member:
    member = Member(log_epoch)
    assert member.tell(Tick()) == [Register()]
    assert member.tell(Registered()) == [Beat(0)]
    return member


def master(epoch: int = 1) -> Member:
    member = registered()
    member.tell(Notified(view(epoch, ME)), Led(epoch))
    assert member.core.role is Role.MASTER
    return member


def replica(epoch: int = 1, of: int = 2) -> Member:
    member = registered()
    member.tell(Notified(view(epoch, of)))
    assert member.core.role is Role.REPLICA
    return member


# -- beginning -----------------------------------------------------------------------------------------------


def test_it_registers_until_the_coordinator_knows_it_and_reports_from_then_on() -> None:
    member = Member()
    assert member.tell(Tick()) == [Register()]
    assert member.tell(Tick()) == []
    member.now_ms += 500
    assert member.tell(Tick()) == [Register()]
    assert member.tell(Registered()) == [Beat(0)]
    member.now_ms += 499
    assert member.tell(Tick()) == []
    member.now_ms += 1
    assert member.tell(Tick()) == [Beat(0)]


def test_a_coordinator_that_does_not_know_it_any_more_is_registered_with_again() -> None:
    member = master()
    assert member.tell(MustRegister()) == [Register()]
    member.now_ms += 500
    assert member.tell(Tick()) == [Register()]
    assert member.tell(Registered()) == [Beat(1)]
    assert member.core.is_master


def test_a_set_that_never_had_a_master_is_asked_for_one_until_it_has() -> None:
    member = registered()
    assert member.beaten(view(0, None)) == [AskElection()]
    assert member.tell(Elected()) == [Beat(0)]
    member.now_ms += 500
    assert member.tell(Tick()) == [Beat(0), AskElection()]
    assert member.tell(Notified(view(1, ME))) == [Lead(1, frozenset((ME,)), 1), Beat(0)]
    member.now_ms += 500
    assert member.tell(Tick()) == [Beat(0)]


# -- roles ---------------------------------------------------------------------------------------------------


def test_an_elected_broker_leads_and_reports_at_once_in_its_epoch() -> None:
    member = replica(1)
    assert member.tell(Notified(view(2, ME))) == [Lead(2, frozenset((ME,)), 1), Beat(1)]
    assert member.core.role is Role.PROMOTING
    assert not member.core.is_master
    assert member.tell(Led(2)) == [Beat(2)]
    assert member.core.is_master


def test_another_master_is_followed() -> None:
    member = replica(1, of=2)
    assert member.tell(Notified(view(2, 3))) == [Follow(2, 3, "10.0.0.3:10912"), Beat(2)]
    assert member.tell(Notified(view(2, 3))) == []


def test_a_beats_answer_is_as_good_as_a_notice_that_was_lost() -> None:
    member = replica(1, of=2)
    assert member.beaten(view(2, 3)) == [Follow(2, 3, "10.0.0.3:10912"), Beat(2)]


def test_a_master_that_moved_is_followed_to_where_it_is() -> None:
    member = replica(1, of=2)
    assert member.beaten(view(1, 2, ha="10.9.9.9:1")) == [Follow(1, 2, "10.9.9.9:1"), Beat(1)]
    assert member.beaten(view(1, 2, ha="10.9.9.9:1")) == []


@pytest.mark.invariant("I6")
def test_a_master_steps_down_before_it_does_anything_in_a_newer_epoch() -> None:
    member = master(1)
    assert member.tell(Notified(view(2, 2))) == [StepDown(1), Follow(2, 2, "10.0.0.2:10912"), Beat(2)]
    member = master(1)
    assert member.tell(Notified(view(2, ME))) == [StepDown(1), Lead(2, frozenset((ME,)), 1), Beat(1)]


def test_a_broker_on_its_way_to_be_master_gives_way_to_a_newer_epoch() -> None:
    member = registered()
    member.tell(Notified(view(1, ME)))
    assert member.tell(Notified(view(2, 2))) == [StepDown(1), Follow(2, 2, "10.0.0.2:10912"), Beat(2)]
    assert member.tell(Led(1)) == []
    assert member.core.role is Role.REPLICA


def test_a_broker_that_cannot_lead_waits_for_another_election() -> None:
    member = registered()
    member.tell(Notified(view(1, ME)))
    assert member.tell(CannotLead(1)) == [StepDown(1), Beat(0)]
    assert member.beaten(view(1, ME)) == []
    assert member.core.role is Role.WAITING
    assert member.tell(Notified(view(2, ME)))[0] == Lead(2, frozenset((ME,)), 1)


@pytest.mark.invariant("I6")
def test_a_replica_that_follows_a_newer_epoch_ends_the_older_masters_time() -> None:
    member = master(1)
    assert member.tell(Superseded(3)) == [StepDown(1), Beat(0)]
    assert member.core.role is Role.WAITING
    assert member.beaten(view(2, 2)) == []  # older than what the replica said
    assert member.beaten(view(3, 2))[0] == Follow(3, 2, "10.0.0.2:10912")
    assert member.tell(Superseded(3)) == []


@pytest.mark.invariant("I11")
def test_an_epoch_is_never_led_twice() -> None:
    """A master that was started anew may have lost bytes that its replicas have."""
    member = registered(log_epoch=4)
    assert member.beaten(view(4, ME)) == []
    assert member.core.role is Role.WAITING
    assert member.core.acting_epoch == 0
    member.now_ms += 500
    assert member.tell(Tick()) == [Beat(0), AskElection()]
    assert member.beaten(view(5, ME))[0] == Lead(5, frozenset((ME,)), 1)


@pytest.mark.invariant("I11")
@pytest.mark.fault("F6")
def test_an_epoch_that_began_before_the_start_is_not_led_although_the_log_has_lost_it() -> None:
    """Power loss took the epoch with its bytes; replicas have them."""
    member = Member(log_epoch=3)
    member.tell(Tick(), Registered(epoch=4))
    assert member.beaten(view(4, ME)) == []
    assert member.core.role is Role.WAITING
    assert member.beaten(view(5, ME))[0] == Lead(5, frozenset((ME,)), 1)


def test_a_second_registration_of_the_same_process_takes_nothing_away() -> None:
    member = registered()
    member.tell(MustRegister(), Registered(epoch=1))
    assert member.beaten(view(1, ME))[0] == Lead(1, frozenset((ME,)), 1)


def test_the_epoch_of_the_log_is_followed_after_a_restart() -> None:
    member = registered(log_epoch=4)
    assert member.beaten(view(4, 2)) == [Follow(4, 2, "10.0.0.2:10912"), Beat(4)]


def test_a_set_without_a_master_has_nobody_to_follow() -> None:
    member = registered()
    assert member.beaten(view(3, None)) == [Follow(3, None, ""), Beat(3)]


# -- what is ignored -----------------------------------------------------------------------------------------


def test_older_epochs_and_lower_terms_are_ignored() -> None:
    member = replica(3, of=2)
    assert member.tell(Notified(view(2, ME))) == []
    member.tell(Notified(view(4, 2, term=5)))
    assert member.tell(Notified(view(9, ME, term=4))) == []
    assert (member.core.role, member.core.epoch) == (Role.REPLICA, 4)


def test_metadata_that_is_older_than_the_log_is_seen() -> None:
    member = registered(log_epoch=7)
    assert member.beaten(view(3, ME)) == []
    assert member.core.is_outdated_metadata
    assert member.core.role is Role.WAITING


# -- the lease -----------------------------------------------------------------------------------------------


@pytest.mark.invariant("I1")
def test_a_lease_counts_from_when_the_beat_was_sent() -> None:
    member = master(1)
    assert not member.core.has_lease(member.now_ms)
    sent_ms, member.now_ms = member.now_ms, member.now_ms + 700
    member.beaten(view(1, ME), LEASE_MS, sent_ms)
    assert member.core.has_lease(sent_ms + LEASE_MS - 1)
    assert not member.core.has_lease(sent_ms + LEASE_MS)


def test_an_older_answer_does_not_shorten_a_lease() -> None:
    member = master(1)
    member.beaten(view(1, ME), LEASE_MS, 10_500)
    member.beaten(view(1, ME), LEASE_MS, 10_000)
    assert member.core.has_lease(10_499 + LEASE_MS)


@pytest.mark.invariant("I1")
def test_a_lease_ends_with_its_epoch() -> None:
    member = master(1)
    member.beaten(view(1, ME), LEASE_MS)
    member.tell(Notified(view(2, ME)))
    assert not member.core.has_lease(member.now_ms)
    member.beaten(view(1, ME), LEASE_MS)  # granted for the epoch before, and late
    member.tell(Led(2))
    assert not member.core.has_lease(member.now_ms)
    member.beaten(view(2, ME), LEASE_MS)
    assert member.core.has_lease(member.now_ms)


@pytest.mark.parametrize("event", [Superseded(2), Notified(view(2, 2)), Stopping()])
def test_whatever_ends_a_mastership_ends_its_lease(event: Event) -> None:
    member = master(1)
    member.beaten(view(1, ME), LEASE_MS)
    member.tell(event)
    assert not member.core.has_lease(member.now_ms)


def test_a_coordinator_of_a_lower_term_grants_nothing() -> None:
    member = master(1)
    member.beaten(view(1, ME, term=3))
    member.beaten(view(1, ME, term=2), LEASE_MS)
    assert not member.core.has_lease(member.now_ms)


def test_a_replica_has_no_lease_whatever_it_is_told() -> None:
    member = replica(1, of=2)
    member.beaten(view(1, 2), LEASE_MS)
    assert not member.core.has_lease(member.now_ms)


# -- the sync-state set --------------------------------------------------------------------------------------


def test_a_master_proposes_one_change_at_a_time() -> None:
    member = master(1)
    both = frozenset((1, 2))
    assert member.tell(Proposed(both, 1)) == [Propose(1, both, 1)]
    # Found by simulation, seed 3577: the tracker would wait for ever for an answer to what was never sent.
    assert member.tell(Proposed(frozenset((1, 3)), 1)) == [Forget(is_certain=True)]
    assert member.tell(Altered(1, both, 2)) == [Decide(both, 2)]
    assert member.tell(Proposed(frozenset((1,)), 2)) == [Propose(1, frozenset((1,)), 2)]


@pytest.mark.parametrize(("event", "is_certain"), [(AlterRefused(1), True), (AlterUnanswered(1), False)])
def test_a_proposal_without_success_is_forgotten_only_where_that_is_certain(
    event: Event, is_certain: bool
) -> None:
    member = master(1)
    member.tell(Proposed(frozenset((1, 2)), 1))
    assert member.tell(event) == [Forget(is_certain), Beat(1)]
    assert member.tell(Proposed(frozenset((1, 2)), 1)) != []


def test_what_came_of_a_proposal_in_an_older_epoch_is_nobodys_business() -> None:
    member = master(1)
    member.tell(Proposed(frozenset((1, 2)), 1), Notified(view(2, ME)), Led(2))
    assert member.tell(Altered(1, frozenset((1, 2)), 2), AlterUnanswered(1)) == []
    assert member.tell(Proposed(frozenset((1, 3)), 2)) != []


def test_only_a_master_proposes_and_the_tracker_hears_of_it() -> None:
    assert replica(1).tell(Proposed(frozenset((1, 2)), 1)) == [Forget(is_certain=True)]


def test_a_proposal_during_a_promotion_is_made_again_after_it() -> None:
    """A replica that had caught up before its master's promotion was complete never joined the in-sync set."""
    member = replica(1)
    member.tell(Notified(view(2, ME)))
    assert member.core.role is Role.PROMOTING
    assert member.tell(Proposed(frozenset((1, 2)), 1)) == [Forget(is_certain=True)]
    member.tell(Led(2))
    assert member.tell(Proposed(frozenset((1, 2)), 1)) == [Propose(2, frozenset((1, 2)), 1)]


def test_a_beats_answer_says_what_the_set_is() -> None:
    member = master(1)
    assert member.beaten(view(1, ME, set_epoch=5)) == [Decide(frozenset((ME,)), 5)]


# -- the end -------------------------------------------------------------------------------------------------


def test_a_clean_stop_steps_down_first_and_then_gives_the_lease_back() -> None:
    member = master(3)
    assert member.tell(Stopping()) == [StepDown(3), Beat(3, is_stopping=True)]
    assert member.tell(Tick(), Notified(view(4, ME)), Stopping()) == []


def test_a_broker_that_never_registered_has_nothing_to_give_back() -> None:
    assert Member().tell(Stopping()) == [StepDown(0)]
