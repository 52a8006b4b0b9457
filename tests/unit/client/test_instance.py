import asyncio

import pytest

from penstock.client.instance import ClientInstance
from penstock.client.options import ClientOptions
from penstock.errors import ClientError, ConnectError
from penstock.protocol.bodies.heartbeat import ConsumerData
from penstock.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from tests.unit.client.producer_cluster import FakeBroker, cluster
from tests.waiting import until


class Member:
    """A consumer as an instance sees it."""

    def __init__(self, group, topics=("T",)):
        self.group = group
        self.topics = topics
        self.handled = []

    def heartbeat_data(self):
        return ConsumerData(self.group)

    def handle(self, connection, command):
        self.handled.append(command.code)
        return command.answer(0, body=b"here")


def options(fake, **more):
    return ClientOptions(name_servers=fake.address, **more)


@pytest.mark.seed("S2-43")
def test_equal_options_share_one_client():
    async def main():
        async with cluster() as fake:
            one = await ClientInstance.acquire(options(fake))
            two, other = await asyncio.gather(
                ClientInstance.acquire(options(fake)), ClientInstance.acquire(options(fake, unit_name="u"))
            )
            assert one is two
            assert one is not other
            assert other.client_id.endswith("@u")
            await one.release()
            await other.release()
            assert (await two.routes.get("T")).topic == "T"
            await two.release()
            third = await ClientInstance.acquire(options(fake))
            assert third is not one
            await third.release()

    asyncio.run(main())


def test_two_consumers_of_a_group_in_one_process_are_two_clients():
    async def main():
        async with cluster() as fake:
            one = await ClientInstance.acquire(options(fake), consumer_group="g")
            two = await ClientInstance.acquire(options(fake), consumer_group="g")
            other = await ClientInstance.acquire(options(fake), consumer_group="h")
            producer = await ClientInstance.acquire(options(fake))
            assert one is not two
            assert one.client_id != two.client_id
            assert other is one is producer
            await one.release("g")
            again = await ClientInstance.acquire(options(fake), consumer_group="g")
            assert again is one
            for instance, group in ((again, "g"), (two, "g"), (other, "h"), (producer, "")):
                await instance.release(group)
            named = options(fake, instance_name="me")
            first = await ClientInstance.acquire(named, consumer_group="g")
            with pytest.raises(ClientError, match="instance_name"):
                await ClientInstance.acquire(named, consumer_group="g")
            first.add_consumer(Member("g"))
            with pytest.raises(ClientError):
                first.add_consumer(Member("g"))
            await first.release("g")

    asyncio.run(main())


@pytest.mark.seed("S3-38")
@pytest.mark.seed("S3-69")
def test_brokers_hear_of_every_group_and_of_its_end():
    async def main():
        async with cluster(2) as fake:
            instance = await ClientInstance.acquire(options(fake))
            instance.add_producer("pg")
            instance.add_producer("pg")
            instance.add_consumer(Member("cg"))
            await instance.routes.get("T")
            for broker in fake.brokers:
                await until(lambda b=broker: b.heartbeats)
                beat = broker.heartbeats[-1]
                assert beat.client_id == instance.client_id
                assert [p.group_name for p in beat.producers] == ["pg"]
                assert [c.group_name for c in beat.consumers] == ["cg"]
            versions = dict.fromkeys((b.address for b in fake.brokers), 479)
            await until(lambda: instance.broker_versions == versions)  # the answers come after the heartbeats
            await instance.remove_producer("pg")
            assert fake.brokers[0].count(RequestCode.UNREGISTER_CLIENT) == 0
            await instance.remove_producer("pg")
            await instance.remove_consumer("cg")
            told = [r.fields for r in fake.brokers[0].requests if r.code == RequestCode.UNREGISTER_CLIENT]
            assert told == [
                {"clientID": instance.client_id, "producerGroup": "pg"},
                {"clientID": instance.client_id, "consumerGroup": "cg"},
            ]
            await instance.release()

    asyncio.run(main())


@pytest.mark.seed("S0-53")
def test_heartbeats_come_at_an_interval_and_none_without_groups():
    async def main():
        async with cluster() as fake:
            instance = await ClientInstance.acquire(options(fake, heartbeat_interval_ms=20))
            await instance.routes.get("T")
            await instance.heartbeat()
            assert fake.brokers[0].heartbeats == []
            instance.add_producer("pg")
            await until(lambda: len(fake.brokers[0].heartbeats) >= 3)
            await instance.release()

    asyncio.run(main())


def test_slaves_hear_only_of_consumers():
    async def main():
        async with cluster() as fake:
            slave = FakeBroker("broker-a", 1)
            await slave.start()
            master = fake.brokers[0]
            fake.name_server.routes["T"] = TopicRouteData(
                (BrokerData("c", "broker-a", {0: master.address, 1: slave.address}),),
                (QueueData("broker-a", 1, 1, 6),),
            )
            instance = await ClientInstance.acquire(options(fake))
            instance.add_producer("pg")
            await instance.routes.get("T")
            assert await instance.heartbeat()
            assert (len(master.heartbeats) > 0, slave.heartbeats) == (True, [])
            instance.add_consumer(Member("cg"))
            assert await instance.heartbeat()
            assert slave.heartbeats
            assert instance.broker_address("broker-a") == master.address
            assert instance.broker_address("broker-a", 1) == slave.address
            await instance.release()
            await slave.stop()

    asyncio.run(main())


@pytest.mark.fault("F1")
def test_a_broker_that_comes_back_hears_of_us_at_once_and_a_dead_one_holds_up_nobody():
    async def main():
        async with cluster(2) as fake:
            first, second = fake.brokers
            instance = await ClientInstance.acquire(options(fake, reconnect_interval_ms=20))
            instance.add_producer("pg")
            await instance.routes.get("T")
            await until(lambda: first.heartbeats and second.heartbeats)
            await first.stop()
            await until(lambda: first.address not in instance.broker_versions)
            seen = len(second.heartbeats)
            await until(lambda: len(second.heartbeats) > seen + 2)
            first.heartbeats.clear()
            await first.start()
            await until(lambda: first.heartbeats)
            await instance.release()

    asyncio.run(main())


def test_a_brokers_request_reaches_the_consumer_of_its_group():
    async def main():
        async with cluster() as fake:
            broker = fake.brokers[0]
            instance = await ClientInstance.acquire(options(fake))
            member = Member("cg")
            instance.add_consumer(member)
            await instance.routes.get("T")
            await until(lambda: broker.heartbeats)
            (connection,) = broker.server.connections
            for code, field in ((307, "consumerGroup"), (221, "group")):
                answer = await connection.call(Command(code, {field: "cg"}))
                assert (answer.code, answer.body) == (0, b"here")
            connection.send(Command(40, {"consumerGroup": "cg"}))
            await until(lambda: member.handled == [307, 221, 40])
            answer = await connection.call(Command(307, {"consumerGroup": "other"}))
            assert answer.code == 1
            assert "other" in answer.remark
            await instance.release("")

    asyncio.run(main())


def test_a_broker_nobody_knows_cannot_be_called():
    async def main():
        async with cluster() as fake:
            instance = await ClientInstance.acquire(options(fake))
            with pytest.raises(ConnectError, match="nobody"):
                await instance.call_broker("nobody", Command(34))
            await instance.routes.get("T")
            answer = await instance.call_broker("broker-a", Command(35, {"clientID": "x"}))
            assert answer.code == 0
            await instance.release()

    asyncio.run(main())
