import asyncio

import pytest

from penstock.client.instance import ClientInstance
from penstock.client.options import ClientOptions
from penstock.client.routes import (
    MessageQueue,
    RouteCache,
    TopicRoute,
    parse_order_conf,
    read_address,
    read_route,
)
from penstock.errors import CodecError, RouteNotFoundError
from penstock.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from tests.unit.client.producer_cluster import cluster
from tests.waiting import until

A = BrokerData("c", "b-a", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"})
B = BrokerData("c", "b-b", {0: "10.0.0.3:10911"})
SLAVES = BrokerData("c", "b-s", {1: "10.0.0.5:10911", 3: "10.0.0.6:10911"})


def route(*queues, brokers=(A, B, SLAVES), topic="T", **more):
    return TopicRoute(topic, {b.broker_name: b for b in brokers}, queues, **more)


@pytest.mark.seed("S3-8")
def test_a_producer_uses_writable_queues_of_brokers_with_a_master():
    found = route(QueueData("b-a", 2, 3, 6), QueueData("b-b", 2, 2, 4), QueueData("b-s", 2, 2, 6))
    assert [(q.broker_name, q.queue_id) for q in found.publish_queues] == [("b-a", 0), ("b-a", 1), ("b-a", 2)]
    assert {(q.broker_name, q.queue_id) for q in found.subscribe_queues} == {
        (name, number) for name in ("b-a", "b-b", "b-s") for number in range(2)
    }


def test_an_order_configuration_alone_decides_the_producers_queues():
    found = route(QueueData("b-a", 8, 8, 6), order_conf="b-a:1;b-b:2")
    assert [str(q.broker_name) + str(q.queue_id) for q in found.publish_queues] == ["b-a0", "b-b0", "b-b1"]
    assert parse_order_conf("x;a:b;b-a:2; ;c:99999999") == [("b-a", 2)]


def test_where_to_read_from():
    assert read_address(A, 1) == "10.0.0.2:10911"
    assert read_address(A, 7) == "10.0.0.1:10911"
    assert read_address(SLAVES, 2) == "10.0.0.6:10911"
    assert read_address(SLAVES, 0) == "10.0.0.5:10911"
    assert read_address(BrokerData("c", "x"), 0) is None
    found = route(QueueData("b-a", 1, 1, 6))
    assert found.address("b-a") == "10.0.0.1:10911"
    assert found.address("nobody") is None
    assert found.master("b-s") is None


def test_a_topic_to_come_takes_its_models_route_cut_to_size():
    model = route(QueueData("b-a", 8, 8, 7), QueueData("b-b", 2, 2, 7), topic="TBW102")
    found = model.as_template_for("New", 4)
    assert found.is_provisional
    assert [(q.topic, q.broker_name, q.queue_id) for q in found.publish_queues] == [
        ("New", "b-a", number) for number in range(4)
    ] + [("New", "b-b", 0), ("New", "b-b", 1)]


@pytest.mark.seed("S4-67")
def test_the_cache_says_what_is_new_and_forgets_brokers_of_no_route():
    cache = RouteCache()
    one = route(QueueData("b-a", 1, 1, 6), brokers=(A,))
    assert cache.put(one)
    assert not cache.put(route(QueueData("b-a", 1, 1, 6), brokers=(A,)))
    assert cache.put(route(QueueData("b-b", 1, 1, 6), brokers=(B,), topic="U"))
    assert set(cache.brokers) == {"b-a", "b-b"}
    assert cache.forget("T")
    assert not cache.forget("T")
    assert set(cache.brokers) == {"b-b"}


def test_the_newest_route_knows_best_where_a_broker_is():
    cache = RouteCache()
    cache.put(route(QueueData("b-a", 1, 1, 6), brokers=(A,)))
    moved = BrokerData("c", "b-a", {0: "10.9.9.9:1"})
    cache.put(route(QueueData("b-a", 1, 1, 6), brokers=(moved,), topic="U"))
    assert cache.brokers["b-a"].master == "10.9.9.9:1"


def test_an_answer_of_either_spelling_is_read():
    for body in (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"h:1"},"brokerName":"z","cluster":"c"}],"queueDatas":'
        b'[{"brokerName":"z","perm":6,"readQueueNums":2,"writeQueueNums":1}]}',
        b'{"brokerDatas":[{"brokerAddrs":{0:"h:1"},"brokerName":"z","cluster":"c"}],"queueDatas":'
        b'[{"brokerName":"z","perm":6,"readQueueNums":2,"writeQueueNums":1}],"orderTopicConf":""}',
    ):
        found = read_route("T", body)
        assert found.publish_queues == (MessageQueue("T", "z", 0),)
        assert len(found.subscribe_queues) == 2


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"queueDatas":[{"brokerName":"z","readQueueNums":999999}]}']
)
def test_an_answer_that_is_no_route_is_refused(body):
    with pytest.raises(CodecError):
        read_route("T", body)


async def with_instance(fake, action, **options):
    instance = ClientInstance(ClientOptions(name_servers=fake.address, **options))
    await instance.start()
    try:
        return await action(instance)
    finally:
        await instance.close()


@pytest.mark.seed("S4-68")
def test_a_known_topic_is_not_asked_for_again_and_callers_share_a_question():
    async def main():
        async with cluster() as fake:

            async def action(instance):
                await asyncio.gather(*(instance.routes.get("T") for _ in range(10)))
                await instance.routes.get("T")
                assert len(fake.name_server.requests) == 1

            await with_instance(fake, action)

    asyncio.run(main())


def test_no_route_is_an_error_that_says_what_to_do():
    async def main():
        async with cluster() as fake:

            async def action(instance):
                with pytest.raises(RouteNotFoundError, match="penstock topic create Nope"):
                    await instance.routes.get("Nope")
                with pytest.raises(RouteNotFoundError, match="does not exist"):
                    await instance.routes.for_publishing("Nope", "TBW102", 4)
                fake.add_topic("TBW102", 8)
                found = await instance.routes.for_publishing("Nope", "TBW102", 4)
                assert found.is_provisional
                assert len(found.publish_queues) == 4

            await with_instance(fake, action)

    asyncio.run(main())


@pytest.mark.seed("S3-34")
def test_routes_in_use_are_asked_for_at_an_interval():
    async def main():
        async with cluster() as fake:

            async def action(instance):
                seen: list[TopicRoute] = []
                instance.routes.on_change.append(seen.append)
                await instance.routes.get("T")
                fake.add_topic("T", 5)
                await until(lambda: len(seen) > 1)
                assert [len(r.publish_queues) for r in seen] == [2, 5]
                del fake.name_server.routes["T"]
                await until(lambda: instance.routes.cache.get("T") is None)

            await with_instance(fake, action, route_interval_ms=20)

    asyncio.run(main())


def test_an_unusable_answer_leaves_the_old_route():
    async def main():
        async with cluster() as fake:

            async def action(instance):
                await instance.routes.get("T")
                fake.name_server.behave = lambda _, request: request.answer(1, "not ready")
                await instance.routes.refresh_all("T")
                fake.name_server.behave = lambda _, request: request.answer(0, body=b"")
                await instance.routes.refresh_all("T")
                assert len(instance.routes.cache.get("T").publish_queues) == 2

            await with_instance(fake, action)

    asyncio.run(main())


def test_route_data_round_trip():
    data = TopicRouteData((A,), (QueueData("b-a", 1, 1, 6),))
    assert read_route("T", data.encode()).brokers["b-a"] == A
