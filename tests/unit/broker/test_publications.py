"""Publication over a socket: all at once, once only, as the messages were staged; and what is refused."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.broker import publication_copies
from penstock.broker.options import BrokerOptions
from penstock.broker.publications import Publications
from penstock.broker.staging import Handle
from penstock.metadata.publication_table import PublicationTable, Published
from penstock.metadata.topic_table import TopicConfig
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers import TellHomeRequestHeader
from penstock.protocol.topic_names import PUBLISHED_TOPIC, SCHEDULE_TOPIC
from penstock.store import FlushMode
from tests.support.running_broker import (
    BORN,
    STORE,
    Bench,
    pulls_held,
    records,
    run,
    running,
    send_fields,
)
from tests.support.staged import TOPICS, body_of, item, publish, shown, staged, status

BOTH_MODES = pytest.mark.parametrize("flush", [FlushMode.ASYNC, FlushMode.SYNC])


def publications(bench: Bench) -> Publications:
    found = bench.broker.publications
    assert found is not None
    return found


@BOTH_MODES
def test_messages_are_published_as_they_were_staged_in_the_order_of_the_handles(
    tmp_path: Path, flush: FlushMode
) -> None:
    async def scenario() -> None:
        async with running(tmp_path, store=replace(STORE, flush_mode=flush)) as bench:
            first = await staged(bench.client, [item(n, n % 4, TAGS="red") for n in range(20)])
            second = await staged(bench.client, [item(n, n % 4, colour="blue") for n in range(20, 30)])
            answer = await publish(bench.client, "q", 7, [second, first])
            assert (answer.code, answer.fields["messages"], answer.fields["already"]) == (0, "30", "false")
            order = [*range(20, 30), *range(20)]
            for queue in range(4):
                pulled = records((await bench.client.pull(queue=queue)).body)
                assert [m.body for m in pulled] == [body_of(n) for n in order if n % 4 == queue]
                assert [m.queue_offset for m in pulled] == list(range(len(pulled)))
            [begun, done] = bench.broker.store.read(PUBLISHED_TOPIC, 0, 0)
            message = bench.broker.store.read("T", 1, 0)[0]
            assert message.properties == {
                "UNIQ_KEY": "U21",
                "KEYS": "k21",
                "colour": "blue",
                "MSG_REGION": "DefaultRegion",
                "TRACE_ON": "true",
                "CLUSTER": "DefaultCluster",
            }
            assert message.born_timestamp == BORN
            assert message.born_host.ip == "127.0.0.1"
            assert message.prepared_transaction_offset == begun.physical_offset
            assert (message.sys_flag, message.reconsume_times, message.flag) == (0, 0, 0)
            assert [found.body for found in bench.broker.store.reader.query("T", "k21")] == [message.body]
            assert json.loads(begun.body)["staged"] == [second, first]
            assert json.loads(done.body) == {
                "kind": "done",
                "query": "q",
                "batch": 7,
                "messages": 30,
                "begun": begun.physical_offset,
                "missing": 0,
            }
            assert bench.broker.store.flusher.flushed_offset > done.physical_offset

    run(scenario)


@BOTH_MODES
def test_nobody_sees_a_part_and_then_everybody_sees_all(
    tmp_path: Path, flush: FlushMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at in every step of the loop, from a client's and from the store's side, while others send."""
    monkeypatch.setattr(publication_copies, "RUN_MESSAGES", 5)

    async def scenario() -> None:
        async with running(tmp_path, store=replace(STORE, flush_mode=flush)) as bench:
            handles = [
                await staged(bench.client, [item(n, n % 4) for n in range(first, first + 50)])
                for first in range(0, 400, 50)
            ]
            seen: list[int] = []
            publications(bench).on_step = lambda step: seen.append(len(shown(bench)))
            publishing = asyncio.ensure_future(publish(bench.connect(), "q", 0, handles))
            sent = 0
            while not publishing.done():
                seen.append(len(shown(bench)))
                assert (await bench.client.call(310, send_fields("other"), b"x")).code == 0
                sent += 1
            assert publishing.result().code == 0
            assert set(seen) == {0, 400}
            assert seen == sorted(seen)
            assert len(shown(bench, "other", 1)) == sent > 0

    run(scenario)


@BOTH_MODES
def test_who_waits_for_messages_is_woken_by_a_publication(tmp_path: Path, flush: FlushMode) -> None:
    async def scenario() -> None:
        async with running(tmp_path, store=replace(STORE, flush_mode=flush)) as bench:
            handle = await staged(bench.client, [item(n, 2) for n in range(5)])
            waiting = asyncio.ensure_future(bench.connect().pull(queue=2, wait_ms=60_000))
            await pulls_held(bench)
            assert (await publish(bench.client, "q", 0, [handle])).code == 0
            async with asyncio.timeout(60):
                assert len(records((await waiting).body)) == 5

    run(scenario)


def test_the_same_batch_again_adds_nothing_and_a_lower_one_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            first = await staged(bench.client, [item(n) for n in range(3)])
            again = await staged(bench.client, [item(n) for n in range(3)])
            assert (await publish(bench.client, "q", 4, [first])).fields["already"] == "false"
            repeated = await publish(bench.client, "q", 4, [again])
            assert (repeated.code, repeated.fields["already"], repeated.fields["messages"]) == (
                0,
                "true",
                "3",
            )
            late = await publish(bench.client, "q", 3, [again])
            assert late.code == ResponseCode.INVALID_PARAMETER
            assert "too late" in (late.remark or "")
            assert len(shown(bench)) == 3
            # Another query is another story, and so is the next batch.
            assert (await publish(bench.client, "r", 0, [again])).fields["already"] == "false"
            assert (await publish(bench.client, "q", 5, [again])).fields["already"] == "false"
            assert len(shown(bench)) == 9
            assert (await status(bench.client, "q"))["batchId"] == "5"
            assert "batchId" not in await status(bench.client, "nobody")

    run(scenario)


def test_a_batch_that_is_being_published_is_waited_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            handles = [await staged(bench.client, [item(n) for n in range(50)]) for _ in range(6)]
            clients = [bench.connect() for _ in range(4)]
            answers = await asyncio.gather(*(publish(c, "q", 0, handles) for c in clients))
            assert {answer.code for answer in answers} == {0}
            assert len(shown(bench)) == 300

    run(scenario)


def test_a_publication_goes_on_when_its_client_goes_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            handles = [await staged(bench.client, [item(n) for n in range(50)]) for _ in range(6)]
            client, steps = bench.connect(), asyncio.Event()
            publications(bench).on_step = lambda step: steps.set()
            publishing = asyncio.ensure_future(publish(client, "q", 0, handles))
            await steps.wait()
            await client.close()
            await asyncio.gather(publishing, return_exceptions=True)
            assert (await publish(bench.client, "q", 0, handles)).code == 0
            assert len(shown(bench)) == 300

    run(scenario)


def test_stopping_waits_for_a_publication_and_takes_no_new_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            handles = [await staged(bench.client, [item(n) for n in range(50)]) for _ in range(6)]
            publishing = asyncio.ensure_future(publish(bench.client, "q", 0, handles))
            waiting = asyncio.ensure_future(publish(bench.connect(), "r", 0, handles))
            started = asyncio.Event()
            publications(bench).on_step = lambda step: started.set()
            await started.wait()
            await publications(bench).stop()
            assert (await publishing).code == 0
            assert (await waiting).code == ResponseCode.SERVICE_NOT_AVAILABLE
        async with running(tmp_path) as bench:
            assert len(shown(bench)) == 300
            assert (await publish(bench.client, "q", 0, handles)).fields["already"] == "true"

    run(scenario)


def test_delayed_messages_wait_from_their_publication_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            rows = [item(1, 2, level=1, TAGS="a"), item(2, 2), item(3, 3, level=99)]
            handle = await staged(bench.client, rows)
            assert (await publish(bench.client, "q", 0, [handle])).code == 0
            assert shown(bench) == [body_of(2)]
            [waiting] = bench.broker.store.read(SCHEDULE_TOPIC, 0, 0)
            assert waiting.properties["REAL_TOPIC"] == "T"
            assert (waiting.properties["REAL_QID"], waiting.properties["DELAY"]) == ("2", "1")
            assert waiting.properties["UNIQ_KEY"] == "U1"
            [last] = bench.broker.store.read(SCHEDULE_TOPIC, 4, 0)
            assert last.properties["DELAY"] == "5"
            found = records((await bench.client.pull(queue=2, offset=1, wait_ms=50_000)).body)
            assert [(m.body, m.tag) for m in found] == [(body_of(1), "a")]
            assert found[0].store_timestamp - waiting.store_timestamp >= 1_000
            assert found[0].prepared_transaction_offset == 0

    run(scenario)


def test_several_topics_and_segments_in_one_publication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication_copies, "RUN_MESSAGES", 7)
    small = replace(STORE, segment_size_bytes=64 * 1024)

    async def scenario() -> None:
        async with running(tmp_path, store=small) as bench:
            topics = (("A", 1), ("T", 4), ("B", 2))
            handles = [
                await staged(bench.client, [item(n, n % 7, size=900) for n in range(at, at + 40)], topics)
                for at in range(0, 400, 40)
            ]
            assert (await publish(bench.client, "q", 0, handles)).code == 0
            assert len(bench.broker.store.log.segments) > 10
            bodies = {}
            for topic, queues in topics:
                for queue in range(queues):
                    bodies[topic, queue] = [m.body for m in bench.broker.store.read(topic, queue, 0, 1000)]
            places = [(topic, queue) for topic, queues in topics for queue in range(queues)]
            for target, place in enumerate(places):
                assert bodies[place] == [body_of(n, 900) for n in range(400) if n % 7 == target]
            assert bench.broker.statistics.topic_put_tps("A") >= 0

    run(scenario)


def test_multi_tag_topics_keep_their_flag(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            bench.broker.topics.update(TopicConfig("M", 1, 1, filter_type="MULTI_TAG"))
            handle = await staged(bench.client, [item(1)], (("M", 1),))
            assert (await publish(bench.client, "q", 0, [handle])).code == 0
            [message] = bench.broker.store.read("M", 0, 0)
            assert message.sys_flag & 2

    run(scenario)


def changed(handle: str, **values: object) -> str:
    return str(Handle.parse(handle)._replace(**values))  # type: ignore[arg-type]


def test_handles_that_lead_nowhere_publish_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            good = await staged(bench.client, [item(n) for n in range(3)])
            other = await staged(bench.client, [item(n) for n in range(9)])
            sent = await bench.client.call(310, send_fields("T"), b"an ordinary message")
            position = int(sent.fields["msgId"][-16:], 16)
            [plain] = bench.broker.store.read("T", 0, 0)
            bad = {
                "not in the log": [good, changed(good, position=1 << 40)],
                "begins there": [good, changed(other, position=Handle.parse(other).position + 1)],
                "has this key": [good, changed(other, key="x" * 32)],
                "in its place": [good, f"{position}.{plain.size}.1.{plain.properties['UNIQ_KEY']}"],
                "messages, not 8": [good, changed(other, messages=8)],
                "twice": [good, good],
                "0 handles": [],
                "it is none": [good, "rubbish"],
            }
            for remark, handles in bad.items():
                answer = await publish(bench.client, "q", 0, handles)
                assert answer.code == ResponseCode.INVALID_PARAMETER, remark
                assert remark in (answer.remark or ""), (remark, answer.remark)
            assert shown(bench) == [b"an ordinary message"]
            assert bench.broker.store.max_offset(PUBLISHED_TOPIC, 0) == 0
            answer = await bench.client.call(
                RequestCode.PUBLISH_STAGED, {"queryId": "q", "batchId": "0"}, b"\xff"
            )
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert (await bench.client.call(RequestCode.PUBLISH_STAGED, {"queryId": "q"}, b"")).code != 0
            for query in ("", "a b", "x" * 256, "nul\0"):
                assert (await publish(bench.client, query, 0, [good])).code == ResponseCode.INVALID_PARAMETER
            assert (await publish(bench.client, "q", 0, [good])).code == 0

    run(scenario)


def test_a_topic_deleted_after_staging_publishes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            handle = await staged(bench.client, [item(0, 0), item(1, 4)], (*TOPICS, ("U", 1)))
            assert (await bench.client.call(215, {"topic": "U"})).code == 0
            answer = await publish(bench.client, "q", 0, [handle])
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
            assert shown(bench) == []
            bench.broker.topics.update(TopicConfig("T", 1, 1))
            few = await staged(bench.client, [item(0, 0)])
            bench.broker.topics.update(TopicConfig("U", 1, 1))
            assert (await publish(bench.client, "q", 0, [few, handle])).code == 0

    run(scenario)


def test_fewer_queues_than_when_it_was_staged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            handle = await staged(bench.client, [item(0, 3)])
            bench.broker.topics.update(TopicConfig("T", 2, 2))
            answer = await publish(bench.client, "q", 0, [handle])
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert "queue 3" in (answer.remark or "")

    run(scenario)


@BOTH_MODES
def test_a_topic_that_is_deleted_half_way_is_gone_whole(
    tmp_path: Path, flush: FlushMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a send makes it again at once: what was staged for the old one does not land in the new one."""
    monkeypatch.setattr(publication_copies, "RUN_MESSAGES", 10)

    async def scenario() -> None:
        async with running(tmp_path, store=replace(STORE, flush_mode=flush), fast=False) as bench:
            handle = await staged(bench.client, [item(n, n % 5) for n in range(100)], (*TOPICS, ("U", 1)))
            copied = 0

            def delete_once(step: str) -> None:
                nonlocal copied
                copied += step == "copied"
                if copied == 3 and bench.broker.topics.get("U") is not None and step == "copied":
                    bench.broker.store.delete_topics(["U"])
                    bench.broker.topics.delete("U")
                    bench.broker.topics.update(TopicConfig("U", 1, 1))

            publications(bench).on_step = delete_once
            assert (await publish(bench.client, "q", 0, [handle])).code == 0
            assert copied > 5
            assert len(shown(bench)) == 80
            assert shown(bench, "U", 1) == []
            assert (await bench.client.send("U", b"new")).code == 0
            assert shown(bench, "U", 1) == [b"new"]
        async with running(tmp_path, store=replace(STORE, flush_mode=flush)) as bench:
            assert len(shown(bench)) == 80
            assert shown(bench, "U", 1) == [b"new"]

    run(scenario)


def test_what_was_published_is_known_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        for batch in range(3):
            async with running(tmp_path) as bench:
                if batch:
                    assert (await status(bench.client, "q"))["batchId"] == str(batch - 1)
                handle = await staged(bench.client, [item(1)])
                assert (await publish(bench.client, "q", batch, [handle])).fields["already"] == "false"
        file = tmp_path / "config" / PublicationTable.FILE_NAME
        table = PublicationTable.from_json(json.loads(file.read_text()))
        assert (table.covered, table.queries["q"].batch) == (6, 2)
        # The file is a shortcut: the log knows as much.
        file.unlink()
        file.with_name(file.name + ".bak").unlink()
        async with running(tmp_path) as bench:
            assert (await status(bench.client, "q"))["batchId"] == "2"
            assert (await publish(bench.client, "q", 2, [handle])).fields["already"] == "true"
            assert len(shown(bench)) == 3

    run(scenario)


def test_a_table_that_knows_more_than_the_log_is_not_followed_beyond_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        table = PublicationTable(covered=1_000, queries={"q": Published(9, 1, 1)})
        (tmp_path / "config").mkdir(parents=True)
        (tmp_path / "config" / PublicationTable.FILE_NAME).write_text(json.dumps(table.to_json()))
        async with running(tmp_path) as bench:
            handle = await staged(bench.client, [item(1)])
            assert (await publish(bench.client, "r", 0, [handle])).code == 0
            assert publications(bench).published.covered == 2
            assert (await status(bench.client, "q"))["batchId"] == "9"

    run(scenario)


def test_a_table_that_cannot_be_read_is_no_empty_table(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir(parents=True)
    (tmp_path / "config" / PublicationTable.FILE_NAME).write_text('{"queries": {"q": {"batch": "x"}}}')

    async def scenario() -> None:
        with pytest.raises(Exception, match=r"stagedPublications.json.*q.batch"):
            async with running(tmp_path):
                pass

    run(scenario)


def test_records_that_are_none_are_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            handle = await staged(bench.client, [item(1)])
            assert (await publish(bench.client, "q", 0, [handle])).code == 0
            from penstock.message import Message

            for body in (
                b"",
                b"[]",
                b"{",
                b'{"kind":"x","query":"q","batch":1,"messages":1}',
                b'{"query":1}',
            ):
                bench.broker.store.append(Message(PUBLISHED_TOPIC, body))
        (tmp_path / "config" / PublicationTable.FILE_NAME).unlink()
        async with running(tmp_path) as bench:
            assert (await status(bench.client, "q"))["batchId"] == "0"

    run(scenario)
    assert caplog.text.count("record of a publication") == 5


def test_options_follow_a_change_at_run_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            handle = await staged(bench.client, [item(1)])
            bench.broker.reconfigure(
                replace(bench.broker.options, publish_handles_max=1, publish_bytes_max=10)
            )
            answer = await publish(bench.client, "q", 0, [handle])
            assert "publish_bytes_max" in (answer.remark or "")
            assert (await status(bench.client, "q"))["publishBytesMax"] == "10"

    run(scenario)
    assert BrokerOptions().publish_bytes_max == 1 << 30


async def tell_home(bench: Bench, query: str, broker: str) -> int:
    fields = TellHomeRequestHeader(query_id=query, broker_name=broker).encode()
    return (await bench.client.call(RequestCode.TELL_HOME, fields)).code


@pytest.mark.parametrize("keeps_table", [True, False])
def test_where_else_a_query_publishes_is_known_after_a_restart(tmp_path: Path, keeps_table: bool) -> None:
    """From the table, or without it from the log; a publication here is newer than what was told before it."""

    async def scenario() -> None:
        async with running(tmp_path) as bench:
            handle = await staged(bench.client, [item(1)])
            for query in ("q", "q", "moved"):
                assert await tell_home(bench, query, "b") == 0
            assert (await publish(bench.client, "moved", 0, [handle])).code == 0
            assert (await publish(bench.client, "away", 0, [handle])).code == 0
            assert await tell_home(bench, "away", "c") == 0
            assert await tell_home(bench, "q", "") == ResponseCode.INVALID_PARAMETER
            assert await tell_home(bench, "a b", "c") == ResponseCode.INVALID_PARAMETER
            assert publications(bench).published.covered == 7  # told again is not written again
        if not keeps_table:
            for path in (tmp_path / "config").glob(f"{PublicationTable.FILE_NAME}*"):
                path.unlink()
        async with running(tmp_path) as bench:
            found = [await status(bench.client, query) for query in ("q", "moved", "away", "unknown")]
            assert [one.get("home") for one in found] == ["b", None, "c", None]
            assert [one.get("batchId") for one in found] == [None, "0", "0", None]

    run(scenario)


def test_homes_are_forgotten_beyond_the_limit(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, publication_queries_max=2) as bench:
            for query in ("q0", "q1", "q0", "q2"):
                assert await tell_home(bench, query, "b") == 0
            found = [await status(bench.client, query) for query in ("q0", "q1", "q2")]
            assert [one.get("home") for one in found] == [None, "b", "b"]

    run(scenario)
