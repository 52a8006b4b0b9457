"""Numbers that wrap, overflow or are none (A16), and delays that would be 'now' (A18), at a running broker."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock.protocol.command import Command
from penstock.runtime import Runtime
from penstock.testing import ManualClock
from tests.abuse.mutation import NUMBERS
from tests.support.raw_peer import RawPeer
from tests.support.request_corpus import BROKER_REQUESTS, TOPIC
from tests.support.running_broker import Bench, batch_item, properties, records, run, running, send_fields

LONG_MAX, LONG_MIN = 2**63 - 1, -(2**63)
# Requests that may store something; the others must not. A pop stores who holds what, and so does what ends it.
STORING = (10, 36, 310, 320, 324, 325, 200050, 200051, 200053, 200151)
# Those that wait for messages, and the field that says how long.
WAITING = {11: "suspendTimeoutMillis", 361: "suspendTimeoutMillis", 200050: "pollTime", 200054: "pollTime"}


@pytest.mark.abuse("A16")
@pytest.mark.parametrize("binary", [False, True])
def test_every_number_of_every_request(
    tmp_path: Path, binary: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Each is refused or clamped: the request is answered, nothing is raised, nothing is stored by a question."""

    async def scenario() -> None:
        async with running(tmp_path) as bench:
            peer = await RawPeer.connect(bench.broker.address)
            for number in range(5):
                assert (await bench.client.send(TOPIC, b"%d" % number, queue=1, TAGS="TagA")).code == 0
            tried, end = 0, bench.broker.store.log.max_offset
            for request in sorted(BROKER_REQUESTS, key=lambda one: one.code in STORING):
                for name, value in request.fields.items():
                    if not value.lstrip("-").isdigit():
                        continue
                    for number in NUMBERS:
                        fields = {**request.fields, name: number}
                        if name != (wait := WAITING.get(request.code)) and wait is not None:
                            fields[wait] = "1"
                        elif request.code in (11, 361):
                            fields["sysFlag"] = "4"  # or it would be waited for
                        elif wait is not None:
                            fields["queueId"] = "77"  # which the topic has not, or it would be waited for
                        answer = await peer.ask(
                            Command(request.code, fields, request.body, opaque=9, binary=binary)
                        )
                        assert -1 < answer.code < 1_000
                        assert request.code in STORING or bench.broker.store.log.max_offset == end
                        tried += 1
            assert tried > 1_500
            await peer.close()

    with caplog.at_level(logging.ERROR):
        run(scenario)
    assert not [record for record in caplog.records if record.exc_info], caplog.text


@pytest.mark.abuse("A16")
def test_pulls_beyond_all_bounds(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            for number in range(5):
                await bench.client.send("T", b"%d" % number)
            for offset, code, following in (
                (-1, 21, 0),
                (LONG_MIN, 21, 0),
                (LONG_MIN + 1, 21, 0),
                (5, 19, 5),
                (6, 21, 5),
                (2**31, 21, 5),
                (2**32 + 2, 21, 5),
                (2**62, 21, 5),
                (LONG_MAX, 21, 5),
            ):
                answer = await bench.client.pull(offset=offset)
                assert (answer.code, answer.fields["nextBeginOffset"]) == (code, str(following)), offset
                assert answer.body == b""
            for name in ("maxMsgNums", "maxMsgBytes"):
                for number in (-(2**31), -1, 0, 2**31 - 1):
                    answer = await bench.client.pull(**{name: number})
                    assert answer.code == 0
                    assert 1 <= len(records(answer.body)) <= 5
            for name, number in (
                ("queueOffset", LONG_MAX + 1),
                ("queueOffset", LONG_MIN - 1),
                ("maxMsgNums", 2**31),
                ("queueId", 2**31),
                ("queueId", 2**32),
                ("commitOffset", LONG_MAX + 1),
                ("sysFlag", 2**31),
            ):
                assert (await bench.client.pull(**{name: number})).code == 1, name
            for queue in (-1, -(2**31), 4, 2**31 - 1):
                assert (await bench.client.pull(queue=queue)).code == 29

    run(scenario)


@pytest.mark.abuse("A16")
def test_other_offsets_and_counts_beyond_all_bounds(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            for number in range(5):
                await bench.client.send("T", b"%d" % number, KEYS="k")
            place = {"topic": "T", "queueId": "0"}
            for time, offset in ((LONG_MIN, 0), (-1, 0), (0, 0), (LONG_MAX, 5)):
                answer = await bench.client.call(29, {**place, "timestamp": str(time)})
                assert (answer.code, answer.fields) == (0, {"offset": str(offset)})
            for position in (-1, LONG_MIN, LONG_MAX, 2**32, 1, 7):
                assert (await bench.client.call(33, {"offset": str(position)})).code == 1
                back = {"offset": str(position), "group": "g", "delayLevel": "1"}
                assert (await bench.client.call(36, back)).code == 1
            for index, count in ((LONG_MIN, 2**31 - 1), (0, 2**31 - 1), (LONG_MAX, 5), (0, -1)):
                fields = {**place, "index": str(index), "count": str(count)}
                assert (await bench.client.call(321, fields)).code == 0
            times = {"beginTimestamp": str(LONG_MIN), "endTimestamp": str(LONG_MAX)}
            for most in (-(2**31), -1, 0, 2**31 - 1):
                answer = await bench.client.call(12, {"topic": "T", "key": "k", "maxNum": str(most), **times})
                assert answer.code in (0, 22)
                assert len(records(answer.body)) <= 64

    run(scenario)


NO_LEVELS = (
    *("-1", "-9223372036854775808", "9223372036854775807", "9223372036854775808", "2147483648", "9" * 30),
    *("1e3", "1.0", "0x1", "NaN", "Infinity", "soon", " 1", "1 ", "\u0661", "--1", "1,000"),
)


@pytest.mark.abuse("A18")
@pytest.mark.parametrize("level", NO_LEVELS)
@pytest.mark.parametrize("fast", [False, True])
def test_a_delay_that_is_none_is_refused_and_not_taken_as_now(tmp_path: Path, level: str, fast: bool) -> None:
    async def scenario() -> None:
        async with running(tmp_path, fast=fast) as bench:
            for _ in range(3):
                assert (await bench.client.send(UNIQ_KEY="u")).code == 0
            end = bench.broker.store.log.max_offset
            for props in (properties(DELAY=level), properties(UNIQ_KEY="u", DELAY=level, WAIT="true")):
                answer = await bench.client.call(310, send_fields(props=props), b"never")
                assert answer.code == 13, answer.remark
                batch = batch_item(b"never", props)
                assert (await bench.client.call(320, send_fields(m="true"), batch)).code == 13
            assert bench.broker.store.log.max_offset == end

    run(scenario)


@pytest.mark.abuse("A18")
@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
@pytest.mark.parametrize("value", ["-1", "+5", "1e3", str(LONG_MAX), str(LONG_MIN), "9" * 40, "x"])
def test_a_timer_that_is_none_is_refused_and_not_taken_as_now(tmp_path: Path, name: str, value: str) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            for _ in range(2):
                assert (await bench.client.send(UNIQ_KEY="u")).code == 0
            end = bench.broker.store.log.max_offset
            assert (await bench.client.send(UNIQ_KEY="u", **{name: value})).code == 13
            assert bench.broker.store.log.max_offset == end

    run(scenario)


def deliver(bench: Bench, clock: ManualClock, passed_ms: int) -> None:
    """Let time pass, and have each delay level deliver what is due by then."""
    clock.advance(passed_ms)
    assert bench.broker.delay is not None
    for level in bench.broker.delay.levels:
        bench.broker.delay.turn(level)


@pytest.mark.abuse("A18")
def test_a_level_over_the_last_one_is_the_last_one(tmp_path: Path) -> None:
    """As in RocketMQ: late, not now. The largest number that fits is a level, too."""

    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            for level in ("5", "6", "18", "2147483647"):
                assert (await bench.client.send("Late", DELAY=level)).code == 0
            deliver(bench, clock, 4_900)
            assert bench.broker.store.max_offset("Late", 0) == 0
            assert bench.broker.store.max_offset("SCHEDULE_TOPIC_XXXX", 4) == 4
            deliver(bench, clock, 200)
            assert bench.broker.store.max_offset("Late", 0) == 4

    run(scenario)


@pytest.mark.abuse("A18")
@pytest.mark.parametrize("level", [2**31 - 1, 100, 5])
def test_what_is_given_back_for_very_late_is_not_back_at_once(tmp_path: Path, level: int) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            sent = await bench.client.send("T", b"again")
            position = int(sent.fields["msgId"][-16:], 16)
            fields = {"offset": str(position), "group": "g", "delayLevel": str(level)}
            assert (await bench.client.call(36, fields)).code == 0
            deliver(bench, clock, 4_900)
            assert bench.broker.store.max_offset("%RETRY%g", 0) == 0
            assert bench.broker.store.max_offset("SCHEDULE_TOPIC_XXXX", 4) == 1
            deliver(bench, clock, 200)
            assert bench.broker.store.max_offset("%RETRY%g", 0) == 1

    run(scenario)
