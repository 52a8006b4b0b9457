"""Broker and producer are killed at every step of a transaction: it ends as the work did, and is seen once or never.

Steps at the broker are writes of its log (`transaction_broker.py`); after its death another starts on the directory,
and the producer, which knows what its work came to, says so when it is asked.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

import penstock
from penstock.errors import PenstockError
from penstock.protocol.bodies import HeartbeatData, ProducerData
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.topic_names import CHECK_MAX_TOPIC, HALF_DONE_TOPIC, HALF_TOPIC
from penstock.remoting import Connection
from penstock.testing import EmbeddedBroker
from penstock.testing.embedded import BROKER
from tests.support.forked_process import ROOT, ForkedProcess
from tests.support.running_broker import Client, records, run
from tests.support.transaction_bench import GROUP, Half, half_of, prepare, stored
from tests.waiting import DEADLINE_S, until

# A broker parks a transaction after so many questions: more than it asks while an answer is on its way.
CHECKS = 1_000


# Transactions whose questions show that a round has gone by.
PROBE = "PROBE"


class Life:
    """One life of a broker, and a producer of the group that answers questions as it was told to."""

    def __init__(self, process: ForkedProcess, address: str, answer: int | None) -> None:
        self.process = process
        self._answer = answer
        self.questions: list[Half] = []
        self._probes = 0
        self.client = Client(address, {int(RequestCode.CHECK_TRANSACTION_STATE): self._asked})

    def _asked(self, connection: Connection, command: Command) -> None:
        half = half_of(command)
        self.questions.append(half)
        if self._answer is not None:
            connection.send(
                Command(RequestCode.END_TRANSACTION, half.end(self._answer, fromTransactionCheck="true"))
            )

    async def join(self) -> None:
        """Be known to the broker as a producer."""
        beat = HeartbeatData("producer@1", (ProducerData(GROUP),), ())
        assert (await self.client.call(RequestCode.HEART_BEAT, body=beat.encode())).code == 0

    async def bodies(self, topic: str = "T", queue: int = 0) -> list[bytes]:
        """What a consumer finds in a queue."""
        found: list[bytes] = []
        while True:
            answer = await self.client.pull(topic, queue, len(found))
            if answer.code != 0:
                return found
            found += [message.body for message in records(answer.body)]

    async def asked_anew(self) -> list[Half]:
        """Questions of further rounds, up to one about a transaction that begins now.

        A round goes through open transactions in their order: what is not asked about before this one has ended.
        """
        before = len(self.questions)
        self._probes += 1
        probe = f"{PROBE}{self._probes}"
        await prepare(self.client, probe, probe.encode(), topic="Probes")
        await until(lambda: any(half.unique == probe for half in self.questions), "the next round")
        return [half for half in self.questions[before:] if not half.unique.startswith(PROBE)]

    def asked_about(self) -> set[str]:
        """The transactions that it was asked about."""
        return {half.unique for half in self.questions if not half.unique.startswith(PROBE)}

    async def died(self) -> None:
        assert await asyncio.to_thread(self.process.wait, DEADLINE_S) == -signal.SIGKILL


@asynccontextmanager
async def life(
    data: Path, step: str = "none", answer: int | None = None, checks: int = CHECKS
) -> AsyncIterator[Life]:
    process = ForkedProcess("tests.fault.transaction_broker", str(data), step, str(checks))
    try:
        address = await asyncio.to_thread(os.read, process.out, 100)
        found = Life(process, address.decode().strip(), answer)
        try:
            yield found
        finally:
            await found.client.close()
    finally:
        process.close()


async def settled(broker: Life, wanted: list[bytes]) -> None:
    """What is visible in the end, and that it stays so while a further round goes by."""

    async def is_visible() -> bool:
        return await broker.bodies() == wanted

    # Questions that were sent before are here: they came on the connection that this answer came on.
    await until(is_visible, lambda: f"the bodies {wanted}")
    assert await broker.asked_anew() == []
    assert await broker.bodies() == wanted


async def marked(broker: Life) -> bool:
    """Whether the end of a transaction is in the log."""
    return len(await broker.bodies(HALF_DONE_TOPIC)) > 0


# Step at which the broker dies -> whether the next has to ask to know.
COMMITS = {"commit-before": True, "commit-torn": False, "commit-after": False}


@pytest.mark.fault("F1")
@pytest.mark.invariant("I9")
@pytest.mark.parametrize("step", COMMITS)
def test_a_commit_at_a_broker_that_dies_is_seen_once(tmp_path: Path, step: str) -> None:
    """Before the write the producer is asked, and commits; after it, and between message and mark, nobody is asked,
    and a commit that is sent again adds nothing."""

    async def scenario() -> None:
        async with life(tmp_path, step) as first:
            half = await prepare(first.client, "U1", b"it")
            with pytest.raises(PenstockError):
                await first.client.call(RequestCode.END_TRANSACTION, half.end(8))
            await first.died()
        async with life(tmp_path, answer=8) as second:
            await second.join()
            await settled(second, [b"it"])
            assert bool(second.asked_about()) == COMMITS[step]
            assert (await second.client.call(RequestCode.END_TRANSACTION, half.end(8))).code == 0
            assert (await second.client.call(RequestCode.END_TRANSACTION, half.end(12))).code != 0
            assert await second.bodies() == [b"it"]

    run(scenario)


@pytest.mark.fault("F1")
@pytest.mark.invariant("I9")
@pytest.mark.parametrize("step", ["rollback-before", "rollback-after"])
def test_a_rollback_at_a_broker_that_dies_is_never_seen(tmp_path: Path, step: str) -> None:
    async def scenario() -> None:
        async with life(tmp_path, step) as first:
            half = await prepare(first.client, "U1", b"it")
            with pytest.raises(PenstockError):
                await first.client.call(RequestCode.END_TRANSACTION, half.end(12))
            await first.died()
        async with life(tmp_path, answer=12) as second:
            await second.join()
            await until(lambda: marked(second), "the mark of the rollback")
            await settled(second, [])
            assert bool(second.asked_about()) == (step == "rollback-before")
            assert (await second.client.call(RequestCode.END_TRANSACTION, half.end(12))).code == 0
            assert (await second.client.call(RequestCode.END_TRANSACTION, half.end(8))).code != 0
            assert await second.bodies() == []

    run(scenario)


@pytest.mark.fault("F1")
@pytest.mark.invariant("I9")
@pytest.mark.parametrize("step", ["half-before", "half-after"])
def test_a_half_message_that_was_not_answered_is_rolled_back_when_it_is_asked_about(
    tmp_path: Path, step: str
) -> None:
    """Its producer has not begun its work: it was told of no half message."""

    async def scenario() -> None:
        async with life(tmp_path, step) as first:
            with pytest.raises(PenstockError):
                await prepare(first.client, "U1", b"it")
            await first.died()
        async with life(tmp_path, answer=12) as second:
            await second.join()
            if step == "half-after":
                await until(lambda: marked(second), "the mark of the rollback")
            await settled(second, [])
            assert second.asked_about() == ({"U1"} if step == "half-after" else set())

    run(scenario)


@pytest.mark.fault("F1")
@pytest.mark.invariant("I9")
@pytest.mark.parametrize("step", ["back-before", "back-after"])
def test_a_check_at_a_broker_that_dies_is_made_again(tmp_path: Path, step: str) -> None:
    async def scenario() -> None:
        async with life(tmp_path, step) as first:
            await first.join()
            with suppress(PenstockError):  # on a slow machine it dies before it answers
                await prepare(first.client, "U1", b"it")
            await first.died()
            assert first.questions == []
        async with life(tmp_path, answer=8) as second:
            await second.join()
            await settled(second, [b"it"])
            # The copy counts: what was put back and not asked about is not a second transaction.
            assert second.asked_about() == {"U1"}
            assert second.questions[0].offset == (2 if step == "back-after" else 1)

    run(scenario)


@pytest.mark.fault("F1")
@pytest.mark.invariant("I9")
@pytest.mark.parametrize("step", ["park-torn", "park-after"])
def test_what_was_being_parked_is_not_lost(tmp_path: Path, step: str) -> None:
    """Without its mark it is parked once more: an operator sees it twice rather than never."""

    async def scenario() -> None:
        async with life(tmp_path, step, checks=2) as first:
            await first.join()
            with suppress(PenstockError):
                await prepare(first.client, "U1", b"stuck")
            await first.died()
        async with life(tmp_path, checks=2) as second:
            await second.join()
            wanted = [b"stuck"] * (2 if step == "park-torn" else 1)

            async def parked() -> list[bytes]:
                return [
                    body
                    for body in await second.bodies(CHECK_MAX_TOPIC)
                    if not body.startswith(PROBE.encode())
                ]

            async def is_parked() -> bool:
                return await parked() == wanted

            await until(is_parked, "what was being parked")
            assert second.questions == []
            assert await second.asked_anew() == []
            assert await parked() == wanted
            assert await second.bodies() == []

    run(scenario)


@pytest.mark.fault("F1")
@pytest.mark.invariant("I9")
def test_progress_survives_a_broker_that_is_killed_while_it_asks(tmp_path: Path) -> None:
    """Rounds, ends and kills, one after the other: each transaction ends once, as its producer says."""

    async def scenario() -> None:
        committed: list[bytes] = []
        for number in range(2):
            async with life(tmp_path, answer=None) as broker:
                await broker.join()
                known = [
                    await prepare(broker.client, f"U{number}-{n}", b"%d-%d" % (number, n)) for n in range(6)
                ]
                await broker.client.call(RequestCode.END_TRANSACTION, known[0].end(8))
                await broker.client.call(RequestCode.END_TRANSACTION, known[1].end(12))
                committed.append(b"%d-0" % number)
                # On a slow machine the first two are asked about before they end.
                over = {known[0].unique, known[1].unique}
                await until(
                    lambda over=over: broker.asked_about() - over, "a question about an open transaction"
                )
                late = next(half for half in broker.questions if half.unique not in over)
                await broker.client.call(RequestCode.END_TRANSACTION, late.end(8))
                committed.append(late.unique[1:].encode())
        async with life(tmp_path, answer=12) as last:
            await last.join()
            halves = await last.bodies(HALF_TOPIC)
            ended = {f"U{m}-{n}" for m in range(2) for n in range(6)}
            await until(lambda: last.questions, "a question")

            async def are_rolled_back() -> bool:
                return await last.asked_anew() == []

            await until(are_rolled_back, "a round without questions")
            await settled(last, committed)
            assert len(halves) >= 12
            assert last.asked_about() <= ended

    run(scenario)


# -- the program dies --------------------------------------------------------------------------------------------


class Shop:
    """Knows by the file whether the work was done."""

    def check(self, message: penstock.ReceivedMessage) -> penstock.TransactionState:
        is_done = Path(message.body.decode()).exists()
        return penstock.TransactionState.COMMIT if is_done else penstock.TransactionState.ROLLBACK


@pytest.mark.fault("F1")
@pytest.mark.invariant("I9")
@pytest.mark.parametrize("step", ["entered", "worked", "left", "none"])
def test_a_program_that_dies_in_a_transaction_leaves_what_its_work_came_to(tmp_path: Path, step: str) -> None:
    file = tmp_path / "done"
    options = replace(BROKER, transaction_check_interval_ms=100, transaction_timeout_ms=100)

    async def scenario() -> None:
        embedded = EmbeddedBroker(broker=options)
        await embedded.start()
        try:
            line = [sys.executable, "-m", "tests.fault.transaction_program"]
            ended = await asyncio.to_thread(
                subprocess.run, [*line, embedded.address, str(file), step], cwd=ROOT, env={**os.environ}
            )
            assert ended.returncode == (0 if step == "none" else -signal.SIGKILL)
            async with penstock.AsyncProducer(
                embedded.address, "shops", transaction_listener=Shop(), transaction_topics=["orders"]
            ):
                assert embedded.broker is not None
                transactions = embedded.broker.transactions
                await until(lambda: not len(transactions.open), "the end of the transaction")
                await transactions.checks.check()
            found = [message.body for queue in range(8) for message in stored(embedded, "orders", queue)]
            assert found == ([] if step == "entered" else [str(file).encode()])
            assert file.exists() == (step != "entered")
        finally:
            await embedded.stop()

    run(scenario)
