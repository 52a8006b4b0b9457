"""What a stream knows of its queues, against a stand-in for a cluster."""

import concurrent.futures
from collections.abc import Iterator

import pytest

from penstock.client.scan_results import OffsetRange, Pulled, PullStatus, QueueId
from penstock.errors import ConnectError, GapError, RouteNotFoundError
from penstock.spark.gaps import Gaps
from penstock.spark.group_progress import GroupProgress
from penstock.spark.live import check_beginnings
from penstock.spark.options import ReadOptions
from penstock.spark.tracking import QueueTracker
from penstock.testing import ManualClock


class Cluster:
    """Answers as a Scan would."""

    def __init__(self) -> None:
        self.ends: dict[str, tuple[int, int]] = {}
        self.down: set[str] = set()
        self.name_server_down = False
        self.asked = 0
        self.record_size = 100
        self.samples = 0

    def queues(self, topic):
        raise RouteNotFoundError(f"topic {topic!r} has no route", "create it first")

    def queues_of(self, topics):
        self.asked += 1
        if self.name_server_down:
            raise ConnectError("no name server answers")
        found = {
            topic: [QueueId.of_key(key, "at:1") for key in sorted(self.ends) if key.startswith(f"{topic}/")]
            for topic in topics
        }
        return {topic: queues for topic, queues in found.items() if queues}

    def topics(self, pattern=""):
        return sorted({key.split("/")[0] for key in self.ends})

    def ranges(self, queues, *, failures=None):
        found = {}
        for queue in queues:
            if queue.broker in self.down:
                if failures is None:
                    raise ConnectError(f"{queue} cannot be reached")
                failures[queue] = ConnectError(f"{queue} cannot be reached")
            else:
                found[queue] = OffsetRange(*self.ends[queue.key])
        return found

    def pull(self, queue, offset, *, rows, size, tags=""):
        self.samples += 1
        return Pulled(queue, offset, PullStatus.FOUND, offset + 10, 0, 100, bytes(10 * self.record_size))


class Bench:
    def __init__(self, **options: str) -> None:
        self.cluster = Cluster()
        self.clock = ManualClock()
        given = {"nameserver": "a", "topic": "T", "retryMs": "1000", "discoverMs": "500", **options}
        self.options = ReadOptions.parse(given)
        self.gaps = Gaps(self.options.on_gap, self.options.gap_table)
        self.tracker = QueueTracker(
            self.cluster,
            self.options,
            self.gaps,
            self.clock,
            lambda seconds: self.wait(seconds),  # noqa: PLW0108  # tests replace it
        )

    def wait(self, seconds: float) -> None:
        self.clock.advance(int(seconds * 1000))

    def ends(self, start, patient=True):
        return self.tracker.ends(start, self.tracker.ranges(), patient=patient)

    def spans(self, start, end):
        return [(item.queue.key, item.start, item.end) for item in self.tracker.slices(start, end)]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.cluster.ends = {"T/a/0": (0, 10), "T/b/1": (5, 20)}
    return made


def test_ends_follow_the_queues(bench):
    assert bench.ends({"T/a/0": 0, "T/b/1": 5}) == {"T/a/0": 10, "T/b/1": 20}
    bench.cluster.ends["T/a/0"] = (0, 12)
    assert bench.ends({"T/a/0": 10, "T/b/1": 20}) == {"T/a/0": 12, "T/b/1": 20}


def test_new_queues_are_looked_for_now_and_then(bench):
    bench.ends({})
    bench.cluster.ends["T/c/0"] = (3, 7)
    bench.cluster.ends["T/d/0"] = (0, 0)
    assert "T/c/0" not in bench.ends({})
    bench.clock.advance(500)
    start = {"T/a/0": 10}
    ends = bench.ends(start)
    assert ends["T/c/0"] == 7
    assert "T/d/0" not in ends, "nothing in it yet"
    named = bench.tracker.limited(start, ends, 0, 0)
    assert named == {"T/a/0": 10, "T/b/1": 5, "T/c/0": 3}
    assert bench.tracker.slices(start, named) == []
    assert bench.tracker.limited(named, ends, 0, 0) == ends
    assert bench.spans(named, ends) == [("T/b/1", 5, 20), ("T/c/0", 3, 7)]


@pytest.mark.parametrize("first", [0, 3])
def test_what_retention_takes_of_a_new_queue_before_its_first_batch_is_run_again_is_a_gap(bench, first):
    start = {"T/a/0": 10, "T/b/1": 20}
    bench.cluster.ends["T/c/0"] = (first, 100)
    named = bench.tracker.limited(start, bench.ends(start), 0, 0)
    planned = bench.tracker.limited(named, bench.ends(named), 0, 0)
    again = Bench()
    again.cluster.ends = {**bench.cluster.ends, "T/c/0": (50, 120)}
    assert again.spans(start, named) == [], "the batch that only names it"
    slices = again.tracker.slices(named, planned)
    with pytest.raises(GapError, match=f"offsets {first} to 49: deleted: the queue begins at 50"):
        check_beginnings(slices, again.tracker.known_ranges(), again.gaps)


def test_a_first_batch_that_was_planned_without_its_begin_is_read_from_what_there_is(bench):
    """Of a checkpoint from before; nobody knows whether there was more."""
    assert bench.spans({"T/a/0": 10}, {"T/a/0": 10, "T/b/1": 20}) == [("T/b/1", 5, 20)]


def test_a_broker_that_is_down_stops_its_own_queues_only(bench):
    start = bench.ends({})
    bench.cluster.down = {"a"}
    bench.cluster.ends = {"T/a/0": (0, 15), "T/b/1": (5, 30)}
    for _ in range(5):
        bench.clock.advance(1000)
        assert bench.ends(start) == {"T/a/0": 10, "T/b/1": 30}
    bench.cluster.down = set()
    assert bench.ends(start) == {"T/a/0": 15, "T/b/1": 30}


def test_nobody_there_is_an_error_after_a_while(bench):
    start = bench.ends({})
    bench.cluster.down = {"a", "b"}
    assert bench.ends(start) == start
    bench.clock.advance(999)
    assert bench.ends(start) == start
    bench.clock.advance(1)
    with pytest.raises(ConnectError, match=r"no broker of topic T answers for 1 s.*same checkpoint"):
        bench.ends(start)


def test_a_start_waits_for_every_broker(bench):
    bench.cluster.down = {"b"}
    with pytest.raises(ConnectError, match="T/b/1 cannot be reached"):
        bench.tracker.all_ranges()

    def back(seconds: float) -> None:
        bench.clock.advance(int(seconds * 1000))
        bench.cluster.down = set()

    bench.cluster.down = {"b"}
    bench.wait = back
    assert bench.tracker.all_ranges() == {"T/a/0": (0, 10), "T/b/1": (5, 20)}


def test_a_name_server_that_is_down_or_knows_nothing_changes_nothing(bench):
    start = bench.ends({})
    bench.cluster.name_server_down = True
    bench.clock.advance(10_000)
    bench.cluster.ends["T/a/0"] = (0, 11)
    assert bench.ends(start)["T/a/0"] == 11
    fresh = Bench()
    with pytest.raises(RouteNotFoundError, match=r"no topic 'T'.*create it first"):
        fresh.ends({})


def test_a_checkpoint_may_name_queues_that_nobody_knows(bench):
    start = {"T/gone/0": 5, "T/a/0": 0}
    assert bench.ends(start)["T/gone/0"] == 5
    (only,) = bench.tracker.slices({"T/gone/0": 5}, {"T/gone/0": 9})
    assert (only.queue.key, only.queue.address, only.rows) == ("T/gone/0", "", 4)


# -- shorter queues ----------------------------------------------------------------------------------------------


def test_a_shorter_queue_may_be_a_replica_that_lags(bench):
    start = {"T/a/0": 14, "T/b/1": 20}
    assert bench.ends(start) == start
    bench.clock.advance(900)
    bench.cluster.ends["T/a/0"] = (0, 16)
    assert bench.ends(start)["T/a/0"] == 16
    bench.cluster.ends["T/a/0"] = (0, 10)
    assert bench.ends(start)["T/a/0"] == 14, "the wait begins anew"


def test_a_shorter_queue_is_a_gap_in_the_end(bench):
    start = {"T/a/0": 14, "T/b/1": 20}
    bench.ends(start)
    bench.clock.advance(1000)
    with pytest.raises(
        GapError, match="offsets 10 to 13: lost: the queue ends at 10, and was read to 14 already"
    ):
        bench.ends(start)
    with pytest.raises(GapError):
        bench.ends(start, patient=False)


def test_behind_such_a_gap_a_queue_goes_on_at_its_new_end():
    bench = Bench(onGap="skip", maxRowsPerTrigger="5")
    bench.cluster.ends = {"T/a/0": (0, 10), "T/b/1": (0, 20)}
    start = {"T/a/0": 14, "T/b/1": 0}
    ends = bench.ends(start, patient=False)
    assert ends == {"T/a/0": 10, "T/b/1": 20}
    limited = bench.tracker.limited(start, ends, 5, 0)
    assert limited == {"T/a/0": 10, "T/b/1": 5}
    assert [item.queue.key for item in bench.tracker.slices(start, limited)] == ["T/b/1"]


# -- limits ------------------------------------------------------------------------------------------------------


def test_limits_by_rows(bench):
    start = {"T/a/0": 0, "T/b/1": 10}
    ends = bench.ends(start)
    assert bench.tracker.limited(start, ends, 10, 0) == {"T/a/0": 5, "T/b/1": 15}
    assert bench.tracker.limited(start, ends, 1, 0) == {"T/a/0": 1, "T/b/1": 11}
    assert bench.tracker.limited(start, ends, 1000, 0) == ends
    assert bench.tracker.limited(ends, ends, 10, 0) == ends
    assert list(bench.tracker.limited(start, ends, 10, 0)) == sorted(ends)


@pytest.mark.parametrize(("rows", "size"), [(4, 0), (0, 400)])
def test_a_new_queue_under_a_limit_begins_at_its_first_message(bench, rows, size):
    ends = bench.ends({"T/a/0": 10})
    limited = bench.tracker.limited({"T/a/0": 10}, ends, rows, size)
    assert limited == {"T/a/0": 10, "T/b/1": 5}
    assert bench.tracker.limited(limited, ends, rows, size) == {"T/a/0": 10, "T/b/1": 9}


def test_limits_by_bytes_go_by_a_sample(bench):
    start = {"T/a/0": 0, "T/b/1": 10}
    ends = bench.ends(start)
    assert bench.tracker.limited(start, ends, 0, 1_000) == {"T/a/0": 5, "T/b/1": 15}
    assert bench.cluster.samples == 2
    bench.tracker.limited(start, ends, 0, 1_000)
    assert bench.cluster.samples == 2, "remembered"
    assert bench.tracker.limited(start, ends, 0, 1) == {"T/a/0": 1, "T/b/1": 11}
    assert bench.tracker.limited(start, ends, 4, 1_000_000) == {"T/a/0": 2, "T/b/1": 12}


# -- groups ------------------------------------------------------------------------------------------------------


class Commits:
    def __init__(self) -> None:
        self.sent: list[tuple[dict, concurrent.futures.Future]] = []
        self.failures: dict[QueueId, ConnectError] = {}

    def commit_soon(self, group, offsets, *, failures):
        failures.update(self.failures)
        self.sent.append((dict(offsets), concurrent.futures.Future()))
        return self.sent[-1][1]


A, B = QueueId("T", "b", 0), QueueId("T", "b", 1)


def test_one_commit_at_a_time_and_only_what_changed():
    commits = Commits()
    progress = GroupProgress(commits, "g")
    progress.moved({A: 1, B: 1})
    progress.moved({A: 2, B: 1})
    progress.moved({A: 3, B: 1})
    assert [offsets for offsets, _ in commits.sent] == [{A: 1, B: 1}]
    assert not progress.finish(0)
    commits.sent[0][1].set_result(None)
    assert [offsets for offsets, _ in commits.sent[1:]] == [{A: 3}]
    commits.sent[1][1].set_result(None)
    assert progress.finish(0)
    progress.moved({A: 3, B: 1})
    assert len(commits.sent) == 2
    progress.moved({A: 2})
    assert commits.sent[2][0] == {A: 2}, "a new checkpoint may go back"
    commits.sent[2][1].set_result(None)


def test_a_commit_that_fails_is_made_good_by_the_next():
    commits = Commits()
    progress = GroupProgress(commits, "g")
    progress.moved({A: 1})
    commits.sent[0][1].set_exception(ConnectError("down"))
    assert not progress.finish(0)
    progress.moved({A: 2})
    commits.sent[1][1].set_result(None)
    assert progress.finish(0)
    GroupProgress(commits, "").moved({A: 1})
    assert len(commits.sent) == 2, "no group, no commits"


def test_a_queue_that_cannot_be_committed_is_alone_in_that():
    commits = Commits()
    progress = GroupProgress(commits, "g")
    commits.failures = {A: ConnectError("its topic is gone")}
    progress.moved({A: 1, B: 1})
    commits.sent[0][1].set_result(None)
    assert not progress.finish(0)
    assert len(commits.sent) == 1, "not again at once"
    progress.moved({A: 1, B: 2})
    assert commits.sent[1][0] == {A: 1, B: 2}
    commits.sent[1][1].set_result(None)
    progress.moved({A: 1, B: 2})
    assert commits.sent[2][0] == {A: 1}, "what was committed is not sent again"
    commits.failures = {}
    progress.moved({A: 1, B: 3})
    commits.sent[2][1].set_result(None)
    assert commits.sent[3:] == [], "that of before still failed"
    progress.moved({A: 1, B: 3})
    commits.sent[3][1].set_result(None)
    assert progress.finish(0)
