"""Names that would like to be paths, commands or somebody else's (A6), and topics that are nobody's to write (A7)."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from penstock.broker.groups import is_group
from penstock.protocol.command import Command
from penstock.store.layout import is_topic
from tests.abuse.directory import assert_tidy
from tests.support.raw_peer import RawPeer
from tests.support.request_corpus import BROKER_REQUESTS, CLIENT, GROUP, TOPIC, Request
from tests.support.running_broker import Bench, batch_item, properties, records, run, running, send_fields
from tests.waiting import until

BAD_NAMES = (
    "..",
    ".",
    "../../../../tmp/penstock-was-here",
    "/tmp/penstock-was-here",
    "a/b",
    "a\\b",
    "C:\\x",
    "a\0b",
    "\0",
    "%2e%2e%2fx",  # allowed characters: must not be decoded by anybody
    "..%2f",
    "~root",
    "a b",
    " ",
    "",
    "a\nb",
    "a\x1b[2Jb",
    "a;b",
    "$(touch x)",
    "`id`",
    "a:b",
    "a@b",
    "\u202ecod",
    "\u00e9",
    "\U0001f600",
    "x" * 128,
    "x" * 256,
    "x" * 10_240,
    "%RETRY%" + "x" * 250,
    "%RETRY%../x",
    "%DLQ%/x",
)
HELD = (11, 361)


def named(request: Request, place: str, name: str) -> Command | None:
    """The request with a hostile name where the corpus has a good one; None if it has none there."""
    is_body = place.encode() in request.body and request.kind == "json"
    fields = {key: name if value == place else value for key, value in request.fields.items()}
    if fields == request.fields and not is_body:
        return None
    body = (
        request.body.replace(json.dumps(place).encode(), json.dumps(name).encode())
        if is_body
        else request.body
    )
    return Command(request.code, fields, body, opaque=5, version=request.version)


@pytest.mark.abuse("A6")
@pytest.mark.parametrize("place", [TOPIC, GROUP, CLIENT], ids=["topic", "group", "client-id"])
def test_no_name_leaves_its_place(tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture) -> None:
    """Every request that names a topic, a group or a client, with every bad name; then the broker starts again."""
    data = tmp_path / "a" / "b" / "data"

    async def scenario() -> None:
        async with running(data) as bench:
            peer = await RawPeer.connect(bench.broker.address)
            assert (await bench.client.send(TOPIC)).code == 0
            # Heartbeats last: a client that is known is asked itself, and this one never answers.
            for request in sorted(BROKER_REQUESTS, key=lambda one: one.code == 34):
                for name in BAD_NAMES:
                    command = named(request, place, name)
                    if command is None:
                        continue
                    if command.code in HELD:
                        command.fields["suspendTimeoutMillis"] = "1"
                    answer = await peer.ask(command)
                    assert -1 < answer.code < 1_000
                    assert len(answer.remark or "") < 2_100
            await peer.close()
            check_tables(bench)

    async def again() -> None:
        async with running(data) as bench:
            check_tables(bench)
            assert (await bench.client.send(TOPIC)).code == 0

    with caplog.at_level(logging.ERROR):
        run(scenario)
        run(again)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR], caplog.text
    assert_tidy(data)
    assert [*tmp_path.rglob("*was-here*")] == []
    assert {path.name for path in tmp_path.iterdir()} == {"a"}
    assert not Path("/tmp/penstock-was-here").exists()


def check_tables(bench: Bench) -> None:
    assert all(map(is_topic, bench.broker.topics.all()))
    assert all(map(is_group, bench.broker.groups.all()))
    assert all(is_topic(queue.topic) for queue in bench.broker.store.queues)
    for key, _ in bench.broker.offsets.all():
        assert is_topic(key.topic)
        assert is_group(key.group)


@pytest.mark.abuse("A6")
@pytest.mark.parametrize("name", [name for name in BAD_NAMES if not is_topic(name)], ids=ascii)
def test_a_send_to_a_bad_name_is_refused_with_29(tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            known = set(bench.broker.topics.all())
            for code in (310, 320):
                body = batch_item(b"x", properties(UNIQ_KEY="u")) if code == 320 else b"x"
                fields = send_fields(name, m="true" if code == 320 else "false")
                answer = await bench.client.call(code, fields, body)
                assert answer.code == 29
            assert set(bench.broker.topics.all()) == known
            assert not len(bench.broker.store.queues)

    run(scenario)


@pytest.mark.abuse("A6")
def test_names_that_differ_in_case_or_look_like_devices_are_just_names(tmp_path: Path) -> None:
    names = (
        "Orders",
        "orders",
        "ORDERS",
        "CON",
        "con",
        "NUL",
        "aux",
        "%2e%2e",
        "%00",
        "a" * 127,
        "-rf",
        "|",
        "%",
    )

    async def scenario() -> None:
        async with running(tmp_path) as bench:
            for name in names:
                assert (await bench.client.send(name, name.encode())).code == 0
            for name in names:
                assert [m.body for m in records((await bench.client.pull(name)).body)] == [name.encode()]

    run(scenario)
    assert_tidy(tmp_path)


@pytest.mark.abuse("A6")
@pytest.mark.parametrize("key", ["../x", "a\0b", "k" * 10_240, "\u202e", "%00", "a#b#c", "' OR 1=1"])
def test_keys_are_data(tmp_path: Path, key: str) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            assert (await bench.client.send("T", b"found", KEYS=key, UNIQ_KEY="u1")).code == 0
            fields = {
                "topic": "T",
                "key": key,
                "maxNum": "5",
                "beginTimestamp": "0",
                "endTimestamp": str(2**62),
            }
            answer = await bench.client.call(12, fields)
            assert answer.code in (0, 22)
            if answer.code == 0:
                assert {m.body for m in records(answer.body)} == {b"found"}

    run(scenario)
    assert_tidy(tmp_path)


RESERVED = (
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
    "rmq_sys_wheel_timer",
    "rmq_sys_REVIVE_LOG_DefaultCluster",
    "rmq_sys_anything",
    "RMQ_SYS_anything",
    "%DLQ%somebody",
)


@pytest.mark.abuse("A7")
@pytest.mark.parametrize("name", RESERVED)
@pytest.mark.parametrize("fast", [False, True])
def test_nobody_writes_to_reserved_topics(tmp_path: Path, name: str, fast: bool) -> None:
    async def scenario() -> None:
        async with running(tmp_path, fast=fast) as bench:
            for _ in range(3):
                assert (await bench.client.send()).code == 0
            end = bench.broker.store.log.max_offset
            unique = properties(UNIQ_KEY="u")
            long_names = {
                "producerGroup": "p",
                "topic": name,
                "queueId": "0",
                "bornTimestamp": "1",
                "properties": unique,
            }
            asked = [
                (310, send_fields(name, props=unique), b"x"),
                (310, send_fields(name, -1, unique), b"x"),
                (310, send_fields(name, props=properties(UNIQ_KEY="u", DELAY="1")), b"x"),
                (310, send_fields(name, m="true"), batch_item(b"x", unique)),
                (320, send_fields(name, m="true"), batch_item(b"x", unique)),
                (325, send_fields(name, props=properties(REPLY_TO_CLIENT="c")), b"x"),
                (10, long_names, b"x"),
                (324, long_names, b"x"),
            ]
            for code, fields, body in asked:
                assert (await bench.client.call(code, fields, body)).code == 16, code
            assert bench.broker.store.log.max_offset == end

    run(scenario)


@pytest.mark.abuse("A7")
@pytest.mark.parametrize("name", [name for name in RESERVED if not name.startswith(("%DLQ%", "RMQ_SYS_any"))])
def test_nobody_makes_changes_or_deletes_reserved_topics(tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            before = bench.broker.topics.get(name)
            fields = {"topic": name, "readQueueNums": "99", "writeQueueNums": "99", "perm": "6"}
            assert (await bench.client.call(17, fields)).code == 29
            listed = {"topicConfigList": [{"topicName": name, "readQueueNums": 99, "perm": 6}]}
            assert (await bench.client.call(18, body=json.dumps(listed).encode())).code == 29
            assert (await bench.client.call(215, {"topic": name})).code == 29
            assert bench.broker.topics.get(name) == before

    run(scenario)


@pytest.mark.abuse("A7")
def test_a_property_names_no_topic_to_write_to(tmp_path: Path) -> None:
    """Where a delayed message goes is the broker's to say, whatever the message says itself."""

    async def scenario() -> None:
        async with running(tmp_path) as bench:
            sent = await bench.client.send(
                "T", b"late", DELAY="1", REAL_TOPIC="SCHEDULE_TOPIC_XXXX", REAL_QID="3", RETRY_TOPIC="TBW102"
            )
            assert sent.code == 0
            await until(lambda: bench.broker.store.max_offset("T", 0) > 0)
            assert [m.body for m in records((await bench.client.pull("T")).body)] == [b"late"]
            assert bench.broker.store.max_offset("SCHEDULE_TOPIC_XXXX", 0) == 1
            assert bench.broker.store.max_offset("SCHEDULE_TOPIC_XXXX", 3) == 0

    run(scenario)
