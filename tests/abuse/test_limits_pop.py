"""Limits of POP, each over a socket, and handles that nobody was given: refused, and nothing is changed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from penstock.protocol.bodies.pop import BatchAck, BatchAckMessageRequestBody
from penstock.protocol.codes import RequestCode, ResponseCode
from tests.abuse.limits import limit
from tests.support.popping import (
    BROKER_NAME,
    GROUP,
    ack,
    batch_ack,
    change,
    fill,
    held,
    is_unknown,
    open_checks,
    pop,
    take,
)
from tests.support.running_broker import run, running


@limit("broker.pop_invisible_max_ms")
@pytest.mark.abuse("A18")
def test_times_that_nobody_lives_to_see(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, pop_invisible_min_ms=2_000, pop_invisible_max_ms=30_000) as bench:
            await fill(bench.client, 1)
            for wrong in (-(2**63), -1, 30_001, 2**63 - 1):
                answer = await pop(bench.client, invisible_ms=wrong)
                assert answer.code == ResponseCode.INVALID_PARAMETER
                assert "pop_invisible_max_ms" in (answer.remark or "")
            [one] = await take(bench.client, invisible_ms=30_000)
            for wrong in (-1, 30_001, 2**63 - 1):
                assert (await change(bench.client, one, wrong)).code == ResponseCode.INVALID_PARAMETER
            assert (await change(bench.client, one, 2_000)).code == 0

    run(scenario)


@limit("broker.pop_check_points_max")
@pytest.mark.abuse("A14")
def test_pops_that_are_never_acknowledged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, pop_check_points_max=3) as bench:
            await fill(bench.client, 5)
            found = [one for _ in range(3) for one in await take(bench.client, most=1)]
            answer = await pop(bench.client, most=1)
            assert answer.code == ResponseCode.SYSTEM_BUSY
            assert "pop_check_points_max" in (answer.remark or "")
            assert (await ack(bench.client, found[0])).code == 0
            assert len(await take(bench.client, most=1)) == 1

    run(scenario)


@pytest.mark.abuse("A14")
def test_group_that_never_acknowledges_leaves_room_for_others(tmp_path: Path) -> None:
    """One group could use up the room for pops of all."""

    async def scenario() -> None:
        async with running(tmp_path, pop_check_points_max=20) as bench:
            await fill(bench.client, 30)
            codes = [(await pop(bench.client, most=1)).code for _ in range(25)]
            assert codes == [0] * 18 + [int(ResponseCode.SYSTEM_BUSY)] * 7
            [one] = await take(bench.client, most=1, group="others")
            assert (await ack(bench.client, one)).code == 0

    run(scenario)


@limit("broker.pop_polls_max")
@pytest.mark.abuse("A14")
def test_pops_that_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, pop_polls_max=2) as bench:
            await fill(bench.client, 1)
            await take(bench.client)
            waiting = [asyncio.create_task(pop(bench.connect(), wait_ms=20_000)) for _ in range(2)]
            await held(bench, 2)
            assert (await pop(bench.client, wait_ms=20_000)).code == ResponseCode.POLLING_FULL
            fields = {"consumerGroup": GROUP, "topic": "T", "queueId": "-1", "pollTime": "20000"}
            answer = await bench.client.call(RequestCode.NOTIFICATION, fields)
            assert answer.fields == {"hasMsg": "false", "pollingFull": "true"}
            for number in range(2):
                await bench.client.send(body=b"%d" % number)
            assert [(await one).code for one in waiting] == [0, 0]

    run(scenario)


@limit("broker.request_modes_max")
@pytest.mark.abuse("A14")
def test_modes_that_are_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, request_modes_max=2) as bench:
            await fill(bench.client, 1)

            async def set_mode(group: str) -> int:
                body = {"topic": "T", "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0}
                answer = await bench.client.call(
                    RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(body).encode()
                )
                return answer.code

            codes = [await set_mode(group) for group in ("a", "b", "c", "a")]
            assert codes == [0, 0, ResponseCode.INVALID_PARAMETER, 0]

    run(scenario)


@pytest.mark.abuse("A20")
def test_handles_that_nobody_was_given(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench.client, 3)
            [one, *_] = await take(bench.client)
            handle = one.handle
            unreadable = (
                "",
                " ",
                "x" * 100_000,
                str(handle) + " 7 7",
                str(handle).replace(" ", "  ", 1),
                str(handle).replace("broker-a", ""),
                f"-1 {handle.pop_time} 60000 0 0 broker-a 0 0",
                f"0 {handle.pop_time} 60000 0 7 broker-a 0 0",
                f"0 {2**63} 60000 0 0 broker-a 0 0",
                "0 \u0661 60000 0 0 broker-a 0 0",
                "a b c d e f g h",
                f"5 {handle.pop_time} 60000 0 0 broker-a 0 0",
            )
            for text in unreadable:
                answer = await ack(bench.client, one, extraInfo=text)
                assert answer.code == ResponseCode.INVALID_PARAMETER, text[:60]
                assert len(answer.remark or "") < 300
                answer = await change(bench.client, one, 60_000, extraInfo=text)
                assert answer.code == ResponseCode.INVALID_PARAMETER, text[:60]
            # Well made, and of no pop: another time, another start, another message, another group, another queue.
            start, popped_ms = handle.start_offset, handle.pop_time
            for text in (
                f"{start} {popped_ms + 1} 60000 0 0 broker-a 0 0",
                f"{start} 0 60000 0 0 broker-a 0 0",
            ):
                assert is_unknown(await ack(bench.client, one, extraInfo=text))
            other = f"{start} {popped_ms} 60000 0 0 broker-a 0 99"
            assert (await ack(bench.client, one, extraInfo=other, offset=99)).code == ResponseCode.NO_MESSAGE
            assert (await ack(bench.client, one, extraInfo=other)).code == ResponseCode.INVALID_PARAMETER
            assert is_unknown(await ack(bench.client, one, consumerGroup="others"))
            assert (await ack(bench.client, one, topic="nowhere")).code == ResponseCode.TOPIC_NOT_EXIST
            assert (await ack(bench.client, one, queueId=99)).code == ResponseCode.MESSAGE_ILLEGAL
            assert is_unknown(await change(bench.client, one, 60_000, consumerGroup="x"))
            assert open_checks(bench) == 1
            assert (await ack(bench.client, one)).code == 0

    run(scenario)


@pytest.mark.abuse("A20")
def test_handles_of_lots_in_order_that_nobody_was_given(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench.client, 3)
            [one, *_] = await take(bench.client, queue=0, order="true", most=2)
            plain = await take(bench.client, group="others", queue=0)
            start, popped_ms = one.handle.start_offset, one.handle.pop_time
            for text in (
                f"{start} {popped_ms + 1} 60000 999 0 broker-a 0 0",
                f"{start} 0 60000 999 0 broker-a 0 0",
                # As if it had been popped without order.
                f"{start} {popped_ms} 60000 0 0 broker-a 0 0",
            ):
                assert is_unknown(await ack(bench.client, one, extraInfo=text)), text
                assert is_unknown(await change(bench.client, one, 60_000, extraInfo=text)), text
            # Of no lot: a message behind it.
            behind = {"extraInfo": f"{start} {popped_ms} 60000 999 0 broker-a 0 2", "offset": 2}
            assert (await ack(bench.client, one, **behind)).code == ResponseCode.MESSAGE_ILLEGAL
            assert is_unknown(await change(bench.client, one, 60_000, **behind))
            assert is_unknown(await ack(bench.client, one, consumerGroup="others"))
            # Nor is what was popped without order a lot.
            handle = str(plain[0].handle).split(" ")
            handle[3] = "999"
            assert is_unknown(await ack(bench.client, plain[0], extraInfo=" ".join(handle)))
            assert await take(bench.client, queue=0, order="true") == []
            assert (await ack(bench.client, one)).code == 0

    run(scenario)


@pytest.mark.abuse("A20")
def test_batches_of_acknowledgements_that_are_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench.client, 3)
            found = await take(bench.client)
            for body in (
                b"",
                b"[]",
                b"{",
                b'{"acks":7}',
                b'{"acks":[{"b":"%%%"}]}',
                b'{"acks":[{"b":"' + b"A" * 100_000 + b'"}]}',
                b'{"acks":[' + b",".join([b"{}"] * 20_000) + b"]}",
                b'{"acks":[{"so":99999999999999999999}]}',
            ):
                answer = await bench.client.call(RequestCode.BATCH_ACK_MESSAGE, body=body)
                assert answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.NO_MESSAGE), body[:40]
            assert (await batch_ack(bench.client, [])).code == ResponseCode.NO_MESSAGE
            handle = found[0].handle
            strange = BatchAck(
                "others", "T", "0", handle.start_offset, 0, 0, handle.pop_time, 60_000, (0, 1, 2, 700)
            )
            body = BatchAckMessageRequestBody(BROKER_NAME, (strange,)).encode()
            assert is_unknown(await bench.client.call(RequestCode.BATCH_ACK_MESSAGE, body=body))
            assert open_checks(bench) == 1
            assert (await batch_ack(bench.client, found)).code == 0
            assert open_checks(bench) == 0

    run(scenario)


@pytest.mark.abuse("A7")
def test_nobody_sends_to_the_revive_topic(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            answer = await bench.client.send("rmq_sys_REVIVE_LOG_DefaultCluster", b"{}", TAGS="ck")
            assert answer.code == ResponseCode.NO_PERMISSION

    run(scenario)
