"""Ends of transactions that are somebody else's, that never were, or that are no ends; more of them than fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.topic_names import HALF_DONE_TOPIC, HALF_TOPIC
from tests.abuse.limits import limit
from tests.support.running_broker import run, running
from tests.support.transaction_bench import (
    COMMIT,
    ROLLBACK,
    Half,
    end,
    half_fields,
    halves,
    marks,
    prepare,
    stored,
)

LARGEST = 2**63 - 1
NOT_FOUND, FOREIGN = ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION
# What a request says instead of the truth, and the code it gets.
WRONG: dict[str, tuple[dict[str, object], int]] = {
    "another group": ({"producerGroup": "others"}, FOREIGN),
    "no group": ({"producerGroup": ""}, FOREIGN),
    "another message": ({"msgId": "U2"}, FOREIGN),
    "another queue offset": ({"tranStateTableOffset": 1}, NOT_FOUND),
    "a negative queue offset": ({"tranStateTableOffset": -1}, NOT_FOUND),
    "the largest queue offset": ({"tranStateTableOffset": LARGEST}, NOT_FOUND),
    "a negative position": ({"commitLogOffset": -1}, NOT_FOUND),
    "the smallest position": ({"commitLogOffset": -LARGEST - 1}, NOT_FOUND),
    "a position beyond the log": ({"commitLogOffset": 1 << 40}, NOT_FOUND),
    "the largest position": ({"commitLogOffset": LARGEST}, NOT_FOUND),
    "no number": ({"commitLogOffset": "0x10"}, NOT_FOUND),
    "a number that is none": ({"tranStateTableOffset": "9" * 40}, NOT_FOUND),
    "a prepared state": ({"commitOrRollback": 4}, ResponseCode.INVALID_PARAMETER),
    "a negative state": ({"commitOrRollback": -8}, ResponseCode.INVALID_PARAMETER),
    "an unknown state": ({"commitOrRollback": 24}, ResponseCode.INVALID_PARAMETER),
    "no state": ({"commitOrRollback": None}, NOT_FOUND),
}


@pytest.mark.abuse("A19")
@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.replace(" ", "-"))
def test_an_end_that_is_wrong_changes_nothing(tmp_path: Path, case: str) -> None:
    fields, code = WRONG[case]

    async def scenario() -> None:
        async with running(tmp_path) as bench:
            half, other = await prepare(bench.client, "U1"), await prepare(bench.client, "U2", group="others")
            before = bench.broker.store.log.max_offset
            for kind in (COMMIT, ROLLBACK):
                answer = await end(bench.client, half, **({"kind": kind} | fields))  # type: ignore[arg-type]
                assert answer.code == code, answer.remark
            assert bench.broker.store.log.max_offset == before
            assert bench.broker.transactions.open.offsets() == [half.offset, other.offset]
            assert (await end(bench.client, half, COMMIT)).code == 0
            assert [message.properties["UNIQ_KEY"] for message in stored(bench)] == ["U1"]

    run(scenario)


@pytest.mark.abuse("A19")
def test_only_half_messages_can_be_committed(tmp_path: Path) -> None:
    """Positions of other records, inside of records, and of messages that look like half messages."""

    async def scenario() -> None:
        async with running(tmp_path) as bench:
            half = await prepare(bench.client, "U1")
            lookalike: dict[str, Any] = {
                "REAL_TOPIC": "T",
                "REAL_QID": "0",
                "PGROUP": "producers",
                "UNIQ_KEY": "U9",
            }
            assert (await bench.client.send("Other", b"plain", **lookalike)).code == 0
            assert (await end(bench.client, half, COMMIT)).code == 0
            [plain] = stored(bench, "Other")
            [mark] = stored(bench, HALF_DONE_TOPIC)
            [committed] = stored(bench)
            before = bench.broker.store.log.max_offset
            for message in (plain, mark, committed):
                unique = message.properties["UNIQ_KEY"]
                forged = Half(unique, message.queue_offset, message.physical_offset)
                assert (await end(bench.client, forged, COMMIT)).code == NOT_FOUND
            for inside in (1, 4, 84, 100):
                forged = Half("U1", 0, half.position + inside)
                assert (await end(bench.client, forged, COMMIT)).code == NOT_FOUND
            assert bench.broker.store.log.max_offset == before

    run(scenario)


@pytest.mark.abuse("A7")
@pytest.mark.abuse("A19")
def test_nobody_can_have_open_transactions_forgotten(tmp_path: Path) -> None:
    """The progress of the broker's own group says which half messages need not be read again."""

    async def scenario() -> None:
        async with running(tmp_path) as bench:
            half = await prepare(bench.client, "U1")
            for topic in (HALF_TOPIC, HALF_DONE_TOPIC):
                where = {"consumerGroup": "CID_RMQ_SYS_TRANS", "topic": topic, "queueId": "0"}
                await bench.client.call(RequestCode.UPDATE_CONSUMER_OFFSET, {**where, "commitOffset": "99"})
                await bench.client.pull(topic, consumerGroup="CID_RMQ_SYS_TRANS", sysFlag=1, commitOffset=99)
                reset = {"topic": topic, "group": "CID_RMQ_SYS_TRANS", "timestamp": "-1", "isForce": "true"}
                await bench.client.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
                assert bench.broker.offsets.query("CID_RMQ_SYS_TRANS", topic, 0) == -1
        async with running(tmp_path) as bench:
            assert bench.broker.transactions.open.offsets() == [0]
            assert (await end(bench.client, half, COMMIT)).code == 0

    run(scenario)


@limit("broker.transactions_open_max")
@pytest.mark.abuse("A14")
def test_open_transactions_have_a_limit(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, transactions_open_max=5) as bench:
            known = [await prepare(bench.client, f"U{n}") for n in range(5)]
            answer = await bench.client.call(RequestCode.SEND_MESSAGE_V2, half_fields("U5"), b"one too many")
            assert (answer.code, "5" in (answer.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)
            assert int(answer.fields["penstockRetryAfterMs"]) > 0
            assert len(halves(bench)) == 5
            assert (await bench.client.send()).code == 0, "others go on"
            assert (await end(bench.client, known[2], ROLLBACK)).code == 0
            await prepare(bench.client, "U6")
            assert marks(bench) == [b"2,"]

    run(scenario)


@pytest.mark.abuse("A18")
def test_what_only_pretends_to_be_transactional_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            assert (await bench.client.send()).code == 0
            for flag in (4, 8, 12):
                fields = {**half_fields("U"), "i": "UNIQ_KEY\x01U\x02", "f": str(flag)}
                answer = await bench.client.call(RequestCode.SEND_MESSAGE_V2, fields, b"x")
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            for name in ("TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"):
                fields = half_fields("U", **{name: "5"})  # type: ignore[arg-type]
                answer = await bench.client.call(RequestCode.SEND_MESSAGE_V2, fields, b"x")
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            forged = {**half_fields("U"), "f": "8"}  # what the sender says of the bits is not what is stored
            assert (await bench.client.call(RequestCode.SEND_MESSAGE_V2, forged, b"x")).code == 0
            assert halves(bench)[0].sys_flag & 0xC == 0
            assert len(stored(bench)) == 1

    run(scenario)
