"""Key, partition, broker, value: sends that go to the partition of their key, and values read from there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import penstock
from penstock.cli.main import root
from penstock.client.async_producer import AsyncProducer
from penstock.client.key_reading import KeyReading
from penstock.client.queue_selection import select_by_key
from penstock.client.routes import TopicRoute
from penstock.errors import MessageError, OptionError, ResponseError
from penstock.message import Message
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.bodies.route import BrokerData, QueueData
from penstock.testing import broker
from penstock.testing.embedded import BROKER, EmbeddedBroker
from tests.support.balanced import cluster, create_topic
from tests.support.consuming import QUICK
from tests.unit.client.producer_cluster import cluster as fakes
from tests.waiting import PATIENT_SENDS, turns, until


@pytest.fixture
def address() -> Iterator[str]:
    with broker(store=QUICK) as address:
        yield address


def fill(address: str, rounds: int = 3, keys: int = 8) -> None:
    with penstock.Admin(address) as admin:
        admin.create_topic("T", queues=6)
    with penstock.Producer(address, partition_by_key=True, **PATIENT_SENDS) as producer:
        for turn in range(rounds):
            for number in range(keys):
                producer.send("T", b"%d of k%d" % (turn, number), keys=f"k{number}")


@pytest.mark.feature("partition-by-key", "fifth-seed")
@pytest.mark.seed("S4-15")
@pytest.mark.seed("S4-17")
@pytest.mark.seed("S4-19")
def test_the_value_of_a_key_is_found_in_the_partition_of_the_key(address: str) -> None:
    fill(address)
    with penstock.Admin(address) as admin:
        places = set()
        for number in range(8):
            found = admin.read_by_key("T", f"k{number}")
            assert found.queue == select_by_key(admin.queues("T"), f"k{number}")
            assert [one.body for one in found.messages] == [
                b"%d of k%d" % (turn, number) for turn in range(3)
            ]
            assert found.latest is not None
            assert found.latest.body == b"2 of k%d" % number
            places.add(found.queue)
        assert len(places) > 2
        assert [one.body for one in admin.read_by_key("T", "k1", limit=2).messages] == [
            b"1 of k1",
            b"2 of k1",
        ]
        nothing = admin.read_by_key("T", "unknown")
        assert (nothing.messages, nothing.latest) == ((), None)
        for wrong in ("", "two words", "\x01"):
            with pytest.raises(OptionError, match="a key is"):
                admin.read_by_key("T", wrong)
        with pytest.raises(OptionError, match="limit is 0"):
            admin.read_by_key("T", "k1", limit=0)


@pytest.mark.feature("partition-by-key", "fifth-seed")
def test_keys_with_one_hash_are_told_apart(address: str) -> None:
    """`Aa` and `BB` have the same hash in Java, and so the same partition and the same place in the index."""
    with penstock.Admin(address) as admin:
        admin.create_topic("T", queues=4)
        with penstock.Producer(address, partition_by_key=True, **PATIENT_SENDS) as producer:
            for key in ("Aa", "BB", "Aa"):
                producer.send("T", key.encode(), keys=[key, "both"])
        for whole in (False, True):
            assert [one.body for one in admin.read_by_key("T", "Aa", whole=whole).messages] == [b"Aa", b"Aa"]
            assert [one.body for one in admin.read_by_key("T", "BB", whole=whole).messages] == [b"BB"]


@pytest.mark.feature("partition-by-key", "fifth-seed")
def test_all_values_of_a_key_however_many(address: str) -> None:
    with penstock.Admin(address) as admin:
        admin.create_topic("T", queues=2)
        with penstock.Producer(address, partition_by_key=True, linger_ms=5, **PATIENT_SENDS) as producer:
            for number in range(300):
                producer.enqueue("T", b"%d" % number, keys="busy" if number % 3 else "calm")
            producer.flush()
        every = [b"%d" % number for number in range(300) if number % 3]
        assert [one.body for one in admin.read_by_key("T", "busy", whole=True, limit=1_000).messages] == every
        assert [one.body for one in admin.read_by_key("T", "busy", whole=True, limit=7).messages] == every[:7]
        newest = admin.read_by_key("T", "busy", limit=500)
        assert [one.body for one in newest.messages] == every[-64:]


def test_what_was_sent_past_the_partition_does_not_hide_the_value(address: str) -> None:
    with penstock.Admin(address) as admin:
        admin.create_topic("T", queues=2)
        with penstock.Producer(address, partition_by_key=True, **PATIENT_SENDS) as producer:
            home = producer.send("T", b"here", keys="k").queue
            other = next(queue for queue in admin.queues("T") if queue != home)
            for number in range(70):
                producer.send("T", b"%d" % number, keys="k", queue=other)
        assert [one.body for one in admin.read_by_key("T", "k").messages] == [b"here"]


def test_a_broker_that_does_not_know_keys_says_so() -> None:
    with broker(store=QUICK, property_filters=False) as address:
        fill(address, rounds=1)
        with penstock.Admin(address) as admin:
            assert admin.read_by_key("T", "k1").latest is not None
            with pytest.raises(ResponseError, match="without whole"):
                admin.read_by_key("T", "k1", whole=True)


def test_where_a_message_was_told_to_go_it_goes(address: str) -> None:
    with (
        penstock.Admin(address) as admin,
        penstock.Producer(address, partition_by_key=True, **PATIENT_SENDS) as producer,
    ):
        admin.create_topic("T", queues=6)
        queues = admin.queues("T")
        home = select_by_key(queues, "k1")
        other = next(queue for queue in queues if queue != home)
        assert producer.send("T", b"1", keys="k1").queue == home
        assert producer.send("T", b"2", keys="k1", queue=other).queue == other
        assert producer.send("T", b"3", keys="k1", queue_key="z").queue == select_by_key(queues, "z")
        assert producer.send(Message.of("T", b"4", keys="k1 k2"), flag=0).queue == home
        same = [Message.of("T", b"5", keys="k1"), Message.of("T", b"6", keys="k1")]
        assert {result.queue for result in producer.send_batch(same)} == {home}
        with pytest.raises(MessageError, match="different keys"):
            producer.send_batch([*same, Message.of("T", b"7", keys="k2")])


@pytest.mark.seed("S4-16")
@pytest.mark.fault("F1")
def test_a_set_without_a_master_keeps_its_keys() -> None:
    def route(*masters: str) -> TopicRoute:
        addresses = {name: {0 if name in masters else 1: f"127.0.0.1:{n}"} for n, name in enumerate("abc", 1)}
        brokers = {name: BrokerData("c", name, found) for name, found in addresses.items()}
        return TopicRoute("T", brokers, tuple(QueueData(name, 2, 2, 6) for name in "cab"))

    whole, failing = route("a", "b", "c"), route("a", "c")
    assert len(failing.publish_queues) == 4
    assert whole.key_queues == failing.key_queues
    assert [queue.broker_name for queue in whole.key_queues] == ["a", "a", "b", "b", "c", "c"]
    pinned = replace(whole, order_conf="b:2")
    assert pinned.key_queues == pinned.publish_queues


@pytest.mark.feature("partition-by-key", "fifth-seed")
@pytest.mark.seed("S4-16")
@pytest.mark.seed("S4-17")
@pytest.mark.seed("S4-18")
@pytest.mark.seed("S4-65")
@pytest.mark.seed("S4-66")
@pytest.mark.seed("S4-67")
@pytest.mark.seed("S4-68")
@pytest.mark.seed("S4-76")
@pytest.mark.seed("S4-77")
def test_the_registry_says_which_broker_has_the_partition_of_a_key_and_is_asked_once() -> None:
    """The name server for clients; the entries that the coordinator keeps in the metadata store say the same."""

    async def scenario() -> None:
        async with cluster(topics={"T": 5}) as found, AsyncExitStack() as stack:
            admin = await stack.enter_async_context(
                penstock.AsyncAdmin(found.node.address, route_interval_ms=300_000)
            )
            producer = await stack.enter_async_context(
                AsyncProducer(found.node.address, partition_by_key=True)
            )
            reading = KeyReading(admin._calls)
            routes = admin._calls.instance.routes
            asked: list[str] = []
            ask = routes._ask

            async def counted(topic: str) -> TopicRoute:
                asked.append(topic)
                return await ask(topic)

            routes._ask = counted  # type: ignore[method-assign]
            partitions = [f"{BROKER.broker_name}-{number}" for number in range(5)]

            async def are_reported() -> bool:
                return [*await found.leader.store.children("/live/topics/T")] == partitions

            await until(are_reported)
            for number in range(20):
                key = f"k{number}"
                sent = await producer.send("T", key.encode(), keys=key)
                queue = await reading.find("T", key)
                assert sent.queue == queue
                entry = f"/live/topics/T/{queue.broker_name}-{queue.queue_id}"
                registered = await found.leader.store.get(entry)
                assert registered is not None
                assert json.loads(registered.value)["broker"] == queue.broker_name
                latest = (await admin.read_by_key("T", key)).latest
                assert latest is not None
                assert latest.body == key.encode()
            assert asked == ["T"]

    asyncio.run(scenario())


@pytest.mark.fault("F1")
def test_a_value_is_found_again_when_its_broker_has_come_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = EmbeddedBroker(tmp_path)
        await node.start()
        await create_topic(node, "T", 4)
        async with AsyncProducer(node.address, partition_by_key=True) as producer:
            await producer.send("T", b"kept", keys="k")
        await node.stop()
        node = EmbeddedBroker(tmp_path)
        await node.start()
        try:
            async with penstock.AsyncAdmin(node.address) as admin:
                latest = (await admin.read_by_key("T", "k")).latest
                assert latest is not None
                assert latest.body == b"kept"
        finally:
            await node.stop()

    asyncio.run(scenario())


def test_the_command_line(address: str) -> None:
    fill(address)

    def run(*arguments: str, text: str = "") -> tuple[int, str]:
        result = CliRunner(env={"COLUMNS": "200"}).invoke(
            root, [*arguments, "--nameserver", address], input=text
        )
        return result.exit_code, result.output

    assert run("produce", "T", "--key", "new", "--by-key", text="one\ntwo\n")[0] == 0
    code, text = run("message", "value", "T", "new")
    assert (code, "two" in text, "one" in text) == (0, True, False)
    code, text = run("message", "value", "T", "new", "--all", "--json")
    said = json.loads(text)
    assert [item["body"] for item in said["values"]] == ["one", "two"]
    assert (said["key"], said["topic"]) == ("new", "T")
    code, text = run("message", "value", "T", "k1", "--all")
    assert (code, "0 of k1" in text, "2 of k1" in text) == (0, True, True)
    assert run("message", "value", "T", "nothing")[0] == 1

    def consumed(*arguments: str) -> list[str]:
        code, text = run("consume", "T", *arguments, "--json")
        assert code == 0, text
        return [json.loads(line)["body"] for line in text.splitlines()]

    assert sorted(consumed("--key", "k1", "--key", "k2")) == [
        f"{turn} of k{k}" for turn in range(3) for k in (1, 2)
    ]
    assert consumed("--group", "g", "--key", "new", "--from", "first") == ["one", "two"]


@pytest.mark.fault("F1")
@pytest.mark.seed("S4-66")
@pytest.mark.parametrize("linger_ms", [0, 2])
def test_a_keyed_send_waits_for_the_new_master_instead_of_going_elsewhere(linger_ms: int) -> None:
    async def scenario() -> None:
        async with fakes(3) as fake:
            failing = fake.brokers[1]
            whole = [MessageQueue("T", f"broker-{name}", number) for name in "abc" for number in range(2)]
            keys = {select_by_key(whole, f"k{number}"): f"k{number}" for number in range(60)}
            assert sorted(keys) == whole
            failing.broker_id = 1
            fake.add_topic("T")
            async with AsyncProducer(
                fake.address, partition_by_key=True, linger_ms=linger_ms, retries=100
            ) as producer:
                tasks = {
                    home: asyncio.ensure_future(producer.send("T", key.encode(), keys=key))
                    for home, key in keys.items()
                }
                there = [task for home, task in tasks.items() if home.broker_name != failing.name]
                await asyncio.wait_for(asyncio.gather(*there), 60)
                await turns()
                assert not any(task.done() for task in tasks.values() if task not in there)
                # Another broker of its set is master now.
                failing.broker_id = 0
                fake.add_topic("T")
                for home, task in tasks.items():
                    assert (await asyncio.wait_for(task, 60)).queue == home

    asyncio.run(scenario())
