"""A request is taken once (A10)."""

import random

import pytest

from penstock.errors import RequestError
from penstock.runtime import SeededEntropy
from penstock.security.freshness import WINDOW, SeenStamps, Stamps
from penstock.testing.clock import ManualClock

pytestmark = pytest.mark.abuse("A10")
WINDOW_MS = 300_000


def pair(sessions_max: int = 100) -> tuple[ManualClock, Stamps, SeenStamps]:
    clock = ManualClock()
    return clock, Stamps(clock, SeededEntropy(1)), SeenStamps(clock, WINDOW_MS, sessions_max)


def test_a_stamp_is_taken_once() -> None:
    _, stamps, seen = pair()
    stamp = stamps.next("broker", 310)
    seen.check("user", stamp, 310)
    with pytest.raises(RequestError, match="received before"):
        seen.check("user", stamp, 310)


def test_a_stamp_is_good_for_its_code_only() -> None:
    """RocketMQ's signature leaves the code out: without this a recorded query could become a deletion."""
    _, stamps, seen = pair()
    with pytest.raises(RequestError, match="another request code"):
        seen.check("user", stamps.next("broker", 12), 215)


def test_stamps_may_come_in_another_order_and_each_once() -> None:
    _, stamps, seen = pair()
    all_of_them = [stamps.next("broker", 11) for _ in range(5_000)]
    chance = random.Random(7)
    chance.shuffle(all_of_them)
    for stamp in all_of_them:
        seen.check("user", stamp, 11)
    for stamp in chance.sample(all_of_them, 200):
        with pytest.raises(RequestError, match="received before"):
            seen.check("user", stamp, 11)
    assert len(seen) == 1


def test_what_is_far_behind_the_newest_is_refused() -> None:
    _, stamps, seen = pair()
    old = stamps.next("broker", 11)
    for _ in range(WINDOW):
        newest = stamps.next("broker", 11)
    seen.check("user", newest, 11)
    with pytest.raises(RequestError, match="received before"):
        seen.check("user", old, 11)


def test_an_old_stamp_and_one_from_the_future_are_refused() -> None:
    clock, stamps, seen = pair()
    stamp = stamps.next("broker", 11)
    clock.advance(WINDOW_MS + 1_000)
    with pytest.raises(RequestError, match="clock"):
        seen.check("user", stamp, 11)
    ahead = f"{clock.now_ms() + WINDOW_MS + 1_000}-0123456789abcdef-1-11"
    with pytest.raises(RequestError, match="clock"):
        seen.check("user", ahead, 11)


def test_sessions_are_bounded_and_forgotten_when_none_of_their_stamps_would_be_taken() -> None:
    clock, _, seen = pair(sessions_max=2)
    now = clock.now_ms()
    for number in range(2):
        seen.check("user", f"{now}-{number:016x}-1-11", 11)
    with pytest.raises(RequestError, match="clients sign"):
        seen.check("user", f"{now}-{9:016x}-1-11", 11)
    clock.advance(WINDOW_MS + 1)
    seen.check("user", f"{clock.now_ms()}-{9:016x}-1-11", 11)
    assert len(seen) == 1


@pytest.mark.abuse("A14")
def test_user_leaves_sessions_to_others() -> None:
    """One account could open so many sessions that no other client was let in for five minutes."""
    clock, _, seen = pair(sessions_max=20)
    now = clock.now_ms()
    for number in range(18):
        seen.check("greedy", f"{now}-{number:016x}-1-11", 11)
    with pytest.raises(RequestError, match="as this user"):
        seen.check("greedy", f"{now}-{99:016x}-1-11", 11)
    seen.check("greedy", f"{now}-{0:016x}-2-11", 11)
    seen.check("another", f"{now}-{99:016x}-1-11", 11)


@pytest.mark.parametrize(
    "stamp", ["", "x", "1-2-3-4", "-".join(["9" * 30] * 4), "1-0123456789abcdef-x-11", "1" * 10_000]
)
def test_what_is_no_stamp_is_refused(stamp: str) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        pair()[2].check("user", stamp, 11)
