"""Refusals that say what is wrong and when to try again: full queues, a slow disk, a full disk, a broken disk."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.broker.flow_control import RETRY_AFTER_FIELD, BusyError, FlowControl
from penstock.broker.options import BrokerOptions
from penstock.errors import DiskFullError, StoreFailedError
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers import DURABILITY_FIELD
from penstock.runtime import Runtime
from penstock.store import FlushMode, StoreOptions
from penstock.testing import FaultyDisk, ManualClock
from tests.support.running_broker import STORE, batch_item, records, run, running, send_fields
from tests.waiting import until

SYNC = replace(STORE, flush_mode=FlushMode.SYNC)


def flow(**options: int) -> FlowControl:
    return FlowControl(BrokerOptions(**options), StoreOptions(), ManualClock())  # type: ignore[arg-type]


def test_so_many_messages_may_wait_and_no_more() -> None:
    control = flow(sends_waiting_max=2, sends_waiting_bytes_max=1_000)
    control.admit(10)
    control.began(2, 100)
    with pytest.raises(BusyError, match=r"\[REJECTREQUEST\]2 messages of 100 bytes wait for the disk"):
        control.admit(10)
    control.ended(1, 50, 40)
    control.admit(10)
    with pytest.raises(BusyError, match="the limits are 2 messages and 1000 bytes"):
        control.admit(951)
    control.ended(1, 50, 40)
    # One message alone is always let in: it could never be sent otherwise.
    control.admit(5_000)
    assert control.refused == 2


@pytest.mark.abuse("A14")
def test_topic_that_fills_the_room_leaves_some_to_others() -> None:
    """A batch may have as many messages as may wait: with two of them on their way, an account with one topic had a
    quarter and more of all other sends refused, and of what the broker stores for itself."""
    control = flow(sends_waiting_max=1_000, sends_waiting_bytes_max=100_000)
    for _ in range(2):
        control.admit(999, "greedy")
        control.began(999, 999, (("greedy", 999, 999),))
    with pytest.raises(BusyError):
        control.admit(1, "greedy")
    for _ in range(9):
        control.admit(100, "other")
        control.began(1, 100, (("other", 1, 100),))
    with pytest.raises(BusyError):
        control.admit(200, "other")  # more than a hundredth of the bytes
    for number in range(241):
        control.admit(1, f"t{number}" if number % 2 else None)
    with pytest.raises(BusyError):
        control.admit(1, "late")  # a quarter more, and no further
    control.ended(999, 999, 5, (("greedy", 999, 999),))
    with pytest.raises(BusyError):
        control.admit(1, "late")
    control.ended(999, 999, 5, (("greedy", 999, 999),))
    control.admit(1, "greedy")


def test_the_hint_follows_how_long_flushes_take() -> None:
    control = flow()
    first = control.retry_after_ms
    for _ in range(50):
        control.began(1, 1)
        control.ended(1, 1, 2_000)
    assert first < 100 < control.retry_after_ms <= 5_000
    error = BusyError("full", control.retry_after_ms)
    assert error.fields == {RETRY_AFTER_FIELD: str(control.retry_after_ms)}
    assert f"try again in about {control.retry_after_ms} ms" in str(error)


def test_a_full_disk_may_clear_by_itself_and_a_broken_one_does_not() -> None:
    control = flow()
    full = control.explain(DiskFullError("disk is 91 % full", "free space"))
    assert isinstance(full, BusyError)
    assert (full.code, full.retry_after_ms) == (ResponseCode.SERVICE_NOT_AVAILABLE, 10_000)
    broken = control.explain(StoreFailedError("writing failed", "restart"))
    assert not isinstance(broken, BusyError)
    assert broken.code == ResponseCode.SERVICE_NOT_AVAILABLE


@pytest.mark.fault("F9")
@pytest.mark.parametrize("fast", [False, True])
def test_a_slow_disk_pushes_back_and_then_goes_on(tmp_path: Path, fast: bool) -> None:
    async def scenario() -> None:
        async with running(tmp_path, store=SYNC, sends_waiting_max=5, fast=fast) as bench:
            assert (await bench.client.send()).code == 0
            flusher = bench.broker.flusher
            assert flusher is not None
            original, held = flusher.when_flushed, []
            flusher.when_flushed = lambda *args: held.append(args)  # type: ignore[method-assign, assignment]
            waiting = [asyncio.ensure_future(bench.client.send(body=b"%d" % i)) for i in range(5)]
            await until(lambda: len(held) == 5)
            assert not any(future.done() for future in waiting)
            answer = await bench.client.send()
            assert answer.code == ResponseCode.SYSTEM_BUSY
            assert (answer.remark or "").startswith("[REJECTREQUEST]5 messages")
            assert int(answer.fields[RETRY_AFTER_FIELD]) > 0
            assert answer.fields["MSG_REGION"] == "DefaultRegion"
            answer = await bench.client.call(
                RequestCode.SEND_BATCH_MESSAGE, send_fields(m="true"), batch_item(b"x")
            )
            assert answer.code == ResponseCode.SYSTEM_BUSY
            # Reads go on meanwhile.
            assert (await bench.client.pull()).code == 0
            flusher.when_flushed = original  # type: ignore[method-assign]
            for args in held:
                original(*args)
            assert {(await future).code for future in waiting} == {0}
            assert (await bench.client.send()).code == 0

    run(scenario)


@pytest.mark.fault("F9")
@pytest.mark.parametrize("fast", [False, True])
def test_a_flush_that_takes_too_long_is_code_10_with_the_place_of_the_message(
    tmp_path: Path, fast: bool
) -> None:
    async def scenario() -> None:
        store = replace(SYNC, sync_flush_timeout_ms=500)
        async with running(tmp_path, store=store, fast=fast) as bench:
            for _ in range(2):
                assert (await bench.client.send()).code == 0
            flusher = bench.broker.flusher
            assert flusher is not None
            original, held = flusher.when_flushed, []
            flusher.when_flushed = lambda *args: held.append(args)  # type: ignore[method-assign, assignment]
            fields = send_fields(**{} if fast else {DURABILITY_FIELD: "flushed"})
            answer = await bench.client.call(RequestCode.SEND_MESSAGE_V2, fields, b"slow")
            assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
            assert "stored" in (answer.remark or "")
            assert (answer.fields["queueOffset"], answer.fields["queueId"]) == ("2", "0")
            assert answer.fields["msgId"]
            assert answer.fields.get(DURABILITY_FIELD) == "memory"
            assert bench.broker.flow.waiting == 0
            flusher.when_flushed = original  # type: ignore[method-assign]
            for args in held:
                original(*args)
            pulled = await bench.client.pull(offset=2, wait_ms=50_000)
            assert [m.body for m in records(pulled.body)] == [b"slow"]

    run(scenario)


@pytest.mark.seed("S3-43")
@pytest.mark.seed("S3-45")
@pytest.mark.fault("F4")
@pytest.mark.parametrize("fast", [False, True])
def test_a_full_disk_refuses_sends_serves_reads_and_recovers(tmp_path: Path, fast: bool) -> None:
    async def scenario() -> None:
        async with running(tmp_path, fast=fast) as bench:
            for _ in range(2):
                assert (await bench.client.send()).code == 0
            bench.broker.store.gate.refuse_writes("disk is 91 % full, over the limit of 85 %")
            answer = await bench.client.send()
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "91 % full" in (answer.remark or "")
            assert "try again in about 10000 ms" in (answer.remark or "")
            assert answer.fields[RETRY_AFTER_FIELD] == "10000"
            answer = await bench.client.call(
                RequestCode.SEND_BATCH_MESSAGE, send_fields(m="true"), batch_item(b"x")
            )
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert (await bench.client.pull()).code == 0
            assert bench.broker.statistics.put_failures > 0
            bench.broker.store.gate.refuse_writes(None)
            assert (await bench.client.send()).code == 0

    run(scenario)


@pytest.mark.fault("F8")
@pytest.mark.parametrize("fast", [False, True])
def test_a_failed_sync_is_told_to_everybody_who_waits_and_nothing_is_taken_any_more(
    tmp_path: Path, fast: bool
) -> None:
    async def scenario() -> None:
        disk = FaultyDisk(tmp_path)
        async with running(tmp_path, store=SYNC, runtime=Runtime(disk=disk), fast=fast) as bench:
            for _ in range(2):
                assert (await bench.client.send()).code == 0
            disk.fail_next("sync", errno.EIO, path_contains="commitlog")
            answer = await bench.client.send(body=b"lost")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "nothing after the last flush counts as written" in (answer.remark or "")
            assert answer.fields["MSG_REGION"] == "DefaultRegion"
            assert "msgId" not in answer.fields
            answer = await bench.client.send()
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            # What was flushed can still be read, and nothing else.
            assert len(records((await bench.client.pull()).body)) == 2

    run(scenario)
