"""A coordinator creates queues at a real broker; the broker did not serve the two requests that this takes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from penstock.coordinator.balancing_part import BalancingPart
from penstock.metadata.topic_table import TopicConfig
from penstock.protocol.bodies.balance import PlacementBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.balance import CreateOnDemandRequestHeader
from penstock.remoting import RemotingClient
from penstock.runtime import Runtime
from penstock.testing.embedded import BROKER, EmbeddedBroker
from penstock.testing.metadata import MemoryEnsemble
from tests.support.coordinator_wire import coordinator, leading
from tests.waiting import until


def test_coordinator_creates_queues_at_a_real_broker(tmp_path: Path) -> None:
    async def test() -> None:
        async with coordinator(MemoryEnsemble(), parts=(BalancingPart,)) as at:
            await leading(at)
            node = EmbeddedBroker(tmp_path, broker=replace(BROKER, coordinators=(at.address,)))
            await node.start()
            client = RemotingClient(runtime=Runtime.system())
            try:
                broker = node.broker
                assert broker is not None
                await until(
                    lambda: broker.options.broker_id == 0 and bool(at.topics.sets), "a master reports"
                )

                async def create(topic: str, queues: int) -> Command:
                    header = CreateOnDemandRequestHeader(topic=topic, queues=queues)
                    return await client.call(
                        at.address, Command(RequestCode.CREATE_ON_DEMAND, header.encode()), 20_000
                    )

                answer = await create("made", 3)
                assert answer.code == 0, answer.remark
                assert PlacementBody.decode(answer.body).created == 3
                made = broker.topics.get("made")
                assert made is not None
                assert (made.read_queue_nums, made.write_queue_nums) == (3, 3)
                # More queues of a topic that is there: everything else of it stays.
                broker.topics.update(replace(made, order=True, attributes={"message.type": "FIFO"}))
                assert (await create("made", 5)).code == 0
                grown = broker.topics.get("made")
                assert isinstance(grown, TopicConfig)
                assert (grown.write_queue_nums, grown.order) == (5, True)
                assert grown.attributes == {"message.type": "FIFO"}
                # What the broker refuses, its answer says.
                refused = await create("rmq_sys_another", 2)
                assert refused.code == ResponseCode.INVALID_PARAMETER
            finally:
                await client.close()
                await node.stop()

    asyncio.run(test())
