"""All sets of a leading coordinator over the metadata store, with time in the test's hands."""

import asyncio

import pytest

from penstock.coordinator.broker_sets import STALL_MS, BrokerSets
from penstock.coordinator.set_messages import AlterSyncSet, ApplyId, Elect, Notify
from penstock.coordinator.set_record import SetRecord
from penstock.coordinator.set_rules import SetPolicy
from penstock.coordinator.topic_reports import SetName
from penstock.errors import RequestError
from penstock.testing import ManualClock
from penstock.testing.metadata import MemoryEnsemble
from tests.unit.coordinator.sets import beat, register
from tests.waiting import turns

NAME = SetName("c", "broker-a")
TIMEOUT_MS = 5_000


class Led:
    """A coordinator's sets with two brokers in sync, 1 the master."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryEnsemble().client()
        self.notices: list[Notify] = []
        self.sets = BrokerSets(self.store, self.clock, SetPolicy(), notify=self.notices.append)

    async def start(self) -> None:
        await self.store.start()
        self.sets.lead(1)
        for broker_id in (1, 2):
            await self.sets.ask(NAME, ApplyId(broker_id, f"code-{broker_id}"), TIMEOUT_MS, is_new=True)
            await self.sets.ask(NAME, register(broker_id), TIMEOUT_MS)
        await self.sets.ask(NAME, Elect(1), TIMEOUT_MS)
        self.beat(1, 2)
        await self.sets.ask(NAME, AlterSyncSet(1, 1, 1, frozenset((1, 2))), TIMEOUT_MS)
        self.beat(1, 2)
        self.notices.clear()

    def beat(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            assert self.sets.beat(NAME, beat(broker_id), is_sure=True).code == 0

    @property
    def record(self) -> SetRecord:
        return self.sets.records()[NAME]

    async def pass_time(self, milliseconds: int, *beating: int) -> None:
        for _ in range(milliseconds // 50):
            self.clock.advance(50)
            self.beat(*beating)
            self.sets.tick()
            await asyncio.sleep(0)

    async def stop(self) -> None:
        await self.sets.stop()
        await self.store.stop()


async def led() -> Led:
    found = Led()
    await found.start()
    return found


@pytest.mark.fault("F2")
def test_a_coordinator_that_slept_does_not_take_its_own_silence_for_that_of_brokers() -> None:
    async def go() -> None:
        found = await led()
        for wake in (found.sets.tick, lambda: found.sets.dropped(101), lambda: found.beat(2)):
            found.clock.advance(3_000)
            wake()
            await turns()
            assert found.record.master_id == 1
            found.beat(1, 2)
        await found.pass_time(2_000, 1, 2)
        assert (found.record.master_id, found.notices) == (1, [])
        await found.stop()

    asyncio.run(go())


def test_a_master_that_is_silent_while_the_coordinator_listens_is_replaced() -> None:
    async def go() -> None:
        found = await led()
        found.clock.advance(STALL_MS)
        await found.pass_time(2_500, 2)
        await turns()
        assert found.record.master_id == 2
        assert [notice.record.master_id for notice in found.notices] == [2]
        await found.stop()

    asyncio.run(go())


def test_whoever_does_not_lead_has_no_sets_and_answers_nobody() -> None:
    async def go() -> None:
        found = await led()
        found.sets.rest()
        assert (found.sets.names(), found.sets.is_loaded) == ([], False)
        assert found.sets.beat(NAME, beat(1), is_sure=True).code == 2
        with pytest.raises(RequestError, match="within 50 ms"):
            await found.sets.ask(NAME, Elect(1), 50)
        found.sets.lead(2)
        answer = await found.sets.ask(NAME, ApplyId(3, "x"), TIMEOUT_MS)
        assert answer.record is not None
        assert answer.record.term == 2
        await found.stop()

    asyncio.run(go())
