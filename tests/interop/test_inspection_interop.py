"""`verify`, `stats` and `dump` on stores of either side: no sizes are given, nothing is changed."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from click.testing import CliRunner

from penstock.cli.main import root
from penstock.message import StoredMessage as PenstockMessage
from penstock.store.inspection import VerifyReport, dump_log, dump_queues, stats, verify
from tests.interop import penstock_side
from tests.interop.conftest import WrittenStore, WrittenStores
from tests.interop.java_messages import SMALL_SIZES
from tests.interop.java_store import JavaStore
from tests.interop.penstock_side import java_form
from tests.interop.workload import EVENTS_COUNT, in_queues


@pytest.fixture(scope="module", params=["java-clean", "java-halted", "penstock"])
def written(request: pytest.FixtureRequest, java: JavaStore, written_stores: WrittenStores) -> WrittenStore:
    return written_stores.get(java, request.param)


def check_sizes(report: VerifyReport) -> None:
    found = report.sizes
    assert (found.segment_size_bytes, found.queue_file_entries, found.index_slots, found.index_entries) == (
        SMALL_SIZES.segment_bytes,
        SMALL_SIZES.queue_entries,
        SMALL_SIZES.index_slots,
        SMALL_SIZES.index_entries,
    )


@pytest.mark.feature("store-files", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.invariant("I12")
def test_verify_calls_the_store_sound(written: WrittenStore) -> None:
    before = penstock_side.fingerprint(written.directory)
    report = verify(written.directory)
    assert report.sound, report.issues
    check_sizes(report)
    assert report.clean is written.is_clean
    assert (report.log.records, report.log.damaged_records) == (len(written.records), 0)
    assert report.log.end == written.java.max_physical_offset
    assert (report.queues.wrong_entries, report.index.wrong_entries, report.index.wrong_slots) == (0, 0, 0)
    if written.is_clean:
        queues = in_queues(written.records)
        assert report.queues.queues == len(queues)
        assert report.queues.entries == sum(map(len, queues.values()))
        assert (report.queues.missing_entries, report.index.unindexed_keys) == (0, 0)
        assert report.index.compared == report.index.entries > 3 * EVENTS_COUNT
    assert penstock_side.fingerprint(written.directory) == before


def test_stats_count_the_same(written: WrittenStore) -> None:
    queues = in_queues(written.records)
    # What a crash kept out of the queue files is counted in the log only.
    for exact in (True, False) if written.is_clean else (True,):
        report = stats(written.directory, exact=exact)
        ranges = {(q.topic, q.queue_id): (q.min_offset, q.max_offset) for q in report.queues if q.max_offset}
        assert ranges == {key: (0, len(records)) for key, records in queues.items()}


@pytest.mark.feature("retained-messages", "rocketmq-5.3", "rocketmq-4.9")
def test_dump_shows_every_message(written: WrittenStore) -> None:
    found = [java_form(message) for message in whole(dump_log(written.directory))]
    assert found == written.records
    events = [java_form(message) for message in whole(dump_queues(written.directory, topic="events"))]
    assert events == in_queues(written.records)[("events", 0)]


@pytest.mark.feature("store-files", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.invariant("I12")
def test_the_commands_read_it_and_change_nothing(written: WrittenStore) -> None:
    before = penstock_side.fingerprint(written.directory)

    def said(*arguments: str) -> str:
        command, *rest = arguments
        done = CliRunner().invoke(root, ["store", command, str(written.directory), *rest])
        assert done.exit_code == 0, (arguments, done.output)
        return done.stdout

    report = json.loads(said("verify", "--json"))
    assert (report["sound"], report["log"]["records"]) == (True, len(written.records))
    events = in_queues(written.records)[("events", 0)]
    assert len(said("dump", "--json", "--topic", "events", "--queue", "0").splitlines()) == len(events)
    some = said("dump", "--json", "--topic", "events", "--queue", "0", "--from", "2", "--max", "3")
    assert [json.loads(line)["offset"] for line in some.splitlines()] == [2, 3, 4]
    if written.is_clean:  # what a crash kept out of the queue files is counted in the log only
        queues = json.loads(said("stats", "--json"))["queues"]
        assert {"topic": "events", "messages": len(events)}.items() <= next(
            queue for queue in queues if (queue["topic"], queue["queue_id"]) == ("events", 0)
        ).items()
    assert "sound" in said("verify")
    for arguments in (("dump",), ("stats",), ("stats", "--exact")):
        assert "events" in said(*arguments)
    assert penstock_side.fingerprint(written.directory) == before


def whole(dumped: Iterable[object]) -> list[PenstockMessage]:
    messages = list(dumped)
    assert all(isinstance(message, PenstockMessage) for message in messages)
    return messages
