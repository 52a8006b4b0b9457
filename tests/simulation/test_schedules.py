"""Thousands of histories of a broker set that a seed decides, and proof that a broken rule would be found.

A failing history prints the command that replays it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import pytest

from penstock.coordinator.leases import MasterLease
from penstock.coordinator.set_rules import SetPolicy
from penstock.replication.acks import AckTracker
from penstock.testing.simulation import Broken, Plan, simulate
from penstock.testing.simulation.model_log import ModelLog
from tests.effort import by_length, first_seed

HISTORIES = by_length(400, 20_000)
FIRST = first_seed(1)
LOTS = by_length(10, 40)
# Histories among which a broken rule has to show.
SEARCH = 150


@pytest.mark.long
@pytest.mark.parametrize("lot", range(LOTS))
@pytest.mark.fault("F1", "F2", "F3", "F5", "F10", "F11", "F12")
@pytest.mark.invariant("I1", "I4", "I5", "I6", "I7", "I10", "I11")
def test_every_history_keeps_what_was_promised(lot: int) -> None:
    reports = [simulate(seed) for seed in range(FIRST + lot, FIRST + HISTORIES, LOTS)]
    # Not idle: messages were acknowledged in both ways, masters changed, and there were faults.
    assert sum(one.replicated for one in reports) > 20 * len(reports)
    assert sum(one.alone for one in reports) > 5 * len(reports)
    assert sum(one.commits for one in reports) > 5 * len(reports)
    assert sum(one.epochs for one in reports) > 2 * len(reports)
    assert sum(one.faults for one in reports) > 5 * len(reports)


def test_the_same_seed_is_the_same_history() -> None:
    first: list[str] = []
    second: list[str] = []
    assert simulate(77, show=first.append) == simulate(77, show=second.append)
    assert first == second
    assert len(first) > 10


def test_a_broken_history_says_how_to_see_it_again() -> None:
    with pytest.raises(Broken, match=r"seed \d+: .*python -m penstock.testing.simulation --seed \d+"):
        _search(_sees_unconfirmed())


# -- broken rules ------------------------------------------------------------------------------------------------


@contextmanager
def _patched(*changes: object) -> Iterator[None]:
    with ExitStack() as stack:
        for change in changes:
            stack.enter_context(change)  # type: ignore[arg-type]
        yield


def _sees_unconfirmed() -> object:
    """Consumers see what is stored, confirmed or not."""
    return _patched(patch.object(ModelLog, "bound", lambda log, position: _unbounded(log)))


def _unbounded(log: ModelLog) -> None:
    log.bounded_at = None
    log.on_bound()


def _no_lease() -> object:
    """A master trusts its lease for ever."""
    return _patched(
        patch("penstock.broker.membership.Membership.has_lease", lambda self, now_ms: self.is_master)
    )


def _elects_under_a_lease() -> object:
    """The coordinator does not wait for leases to run out."""
    return _patched(patch.object(MasterLease, "has_run_out", lambda self, now_ms: True))


def _confirms_without_the_set() -> object:
    """A message counts as replicated as soon as the master has it."""
    return _patched(patch.object(AckTracker, "counted", property(lambda self: frozenset({self.own_id}))))


def _joins_too_early() -> object:
    """A replica joins the set without having what was confirmed."""
    return _patched(
        patch.object(AckTracker, "_may_join", lambda self, replica, now_ms: replica.is_connected),
        patch.object(AckTracker, "_has_confirmed", lambda self, replica: True),
        patch.object(
            AckTracker,
            "counted",
            property(lambda self: frozenset(m for m in self.members if self.replicas.get(m)) | {self.own_id}),
        ),
    )


def _never_truncates() -> object:
    """A replica that comes back keeps what was never confirmed."""
    keeps_all = patch(
        "penstock.replication.receiver.common_point", lambda mine, end, theirs, most: min(end, most)
    )
    return _patched(keeps_all)


def _search(rule: object, plan: Plan | None = None) -> None:
    with rule:  # type: ignore[attr-defined]
        for seed in range(1, SEARCH + 1):
            simulate(seed, plan)


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        (_sees_unconfirmed, "I4|I5"),
        (_no_lease, "I6"),
        (_elects_under_a_lease, "I6"),
        (_confirms_without_the_set, "I1|I4|I5"),
        (_joins_too_early, "I1|I4|I5"),
        (_never_truncates, "I1|I4|I5|I7"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_broken_rule_is_found(rule: Callable[[], object], found: str) -> None:
    with pytest.raises(Broken, match=found):
        _search(rule())


def test_unclean_elections_lose_messages_and_are_off() -> None:
    assert not SetPolicy().is_unclean_allowed
    with pytest.raises(Broken, match=r"I1|I4|I5"):
        _search(_patched(), Plan(policy=SetPolicy(is_unclean_allowed=True)))
