"""What brokers ask of consumers, relayed by a real broker or sent as it would send it."""

from collections.abc import Iterator

import pytest

import penstock
from penstock.client.consumer import Consumer
from penstock.client.loop_thread import LoopThread
from penstock.client.received import RETRY, ReceivedMessage
from penstock.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ResetOffsetBody,
)
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.remoting import RemotingClient
from penstock.runtime import Runtime
from penstock.testing import broker
from tests.support.consuming import QUICK, Seen, numbered, send
from tests.waiting import wait_until


@pytest.fixture
def address() -> Iterator[str]:
    with broker(store=QUICK, server_side_reset=False) as address:
        yield address


def ask_broker(consumer: Consumer, code: RequestCode, body: bytes = b"", **fields: str) -> Command:
    """As an administrator would, on a connection of its own."""
    [master] = {one.master for one in consumer.core.instance.routes.cache.brokers.values()}
    assert master is not None

    async def call() -> Command:
        client = RemotingClient(runtime=Runtime.system())
        try:
            return await client.call(master, Command(code, fields, body), 5_000)
        finally:
            await client.close()

    thread = LoopThread.acquire()
    try:
        return thread.run(call())
    finally:
        thread.release()


def test_running_info(address: str) -> None:
    send(address, "T", *numbered(8))
    seen = Seen()
    with Consumer(address, group="g", start_from="first", listener=seen, threads=3) as consumer:
        consumer.subscribe("T", "*")
        wait_until(lambda: len(seen.messages) == 8)
        wait_until(lambda: len(consumer.assignment) == 5)
        answer = ask_broker(
            consumer,
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            consumerGroup="g",
            clientId=consumer.client_id,
            jstackEnable="true",
        )
    assert answer.code == 0
    info = ConsumerRunningInfo.decode(answer.body)
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert info.properties["consumeThreadMax"] == "3"
    assert {item.topic for item in info.subscriptions} == {"T", "%RETRY%g"}
    queues = [item for queue, item in info.queues.items() if queue.topic == "T"]
    assert sum(item.commit_offset for item in queues) == 8
    assert all(item.last_pull_timestamp > 0 and item.cached_msg_count == 0 for item in queues)
    assert info.statuses["T"].consume_ok_tps > 0
    assert "penstock-g-0" in (info.jstack or "")


def test_status_and_reset(address: str) -> None:
    send(address, "T", *numbered(8))
    seen = Seen()
    settings = {"start_from": "first", "persist_interval_ms": 50}
    with Consumer(address, group="g", listener=seen, **settings) as consumer:
        consumer.subscribe("T")
        wait_until(lambda: sum(consumer.committed(q) or 0 for q in consumer.queues("T")) == 8)
        wait_until(lambda: all(consumer.committed(q) is not None for q in consumer.queues("T")))
        answer = ask_broker(
            consumer, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="T", group="g", clientAddr=""
        )
        [offsets] = (GetConsumerStatusBody.decode(answer.body).clients or {}).values()
        assert sum(offsets.values()) == 8
        seen.messages.clear()
        answer = ask_broker(
            consumer,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            topic="T",
            group="g",
            timestamp="0",
            isForce="true",
        )
        assert answer.code == 0, answer.remark
        # Everything comes again, once.
        wait_until(lambda: len(seen.messages) == 8)
        assert sorted(seen.bodies) == sorted(numbered(8))


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (None, ConsumeResult.CR_SUCCESS),
        (RETRY, ConsumeResult.CR_LATER),
        (ValueError("no"), ConsumeResult.CR_THROW_EXCEPTION),
    ],
)
def test_consume_directly(address: str, outcome: object, expected: ConsumeResult) -> None:
    def work(message: ReceivedMessage) -> object:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    with penstock.Producer(address) as producer:
        result = producer.send("T", b"body", tag="a")
    seen = Seen(work)
    with Consumer(address, group="g", start_from="last", listener=seen) as consumer:
        consumer.subscribe("T", "b")
        consumer.wait_assigned()
        answer = ask_broker(
            consumer,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            consumerGroup="g",
            clientId=consumer.client_id,
            msgId=result.offset_msg_id,
            brokerName="test-broker",
        )
    assert answer.code == 0, answer.remark
    told = ConsumeMessageDirectlyResult.decode(answer.body)
    assert told.consume_result is expected
    assert ("no" in (told.remark or "")) == isinstance(outcome, Exception)
    assert seen.bodies == [b"body"]
    assert seen.messages[0].queue.broker_name == "test-broker"


def test_consume_directly_needs_a_listener(address: str) -> None:
    with penstock.Producer(address) as producer:
        result = producer.send("T", b"body")
    with Consumer(address, group="g") as consumer:
        consumer.subscribe("T")
        consumer.wait_assigned()
        answer = ask_broker(
            consumer,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            consumerGroup="g",
            clientId=consumer.client_id,
            msgId=result.offset_msg_id,
        )
    assert answer.code == 1
    assert "no listener" in (answer.remark or "")


def test_a_reset_that_is_pushed_goes_to_queues_that_are_held(address: str) -> None:
    """Both spellings of the body, and queues of others among them."""
    send(address, "T", *numbered(4), queue_key="k")
    seen = Seen()
    with Consumer(address, group="g", start_from="first", listener=seen) as consumer:
        consumer.subscribe("T")
        wait_until(lambda: len(seen.messages) == 4)
        core = consumer.core
        queue = seen.messages[0].queue
        wait_until(lambda: consumer.position(queue) == 4)
        others = queue._replace(broker_name="elsewhere")
        for body in (
            ResetOffsetBody({queue: 2, others: 7}).encode(),
            ResetOffsetBody({queue: 2}).encode_list(),
        ):
            seen.messages.clear()
            command = Command(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                {"topic": "T", "group": "g", "timestamp": "0"},
                body,
            )

            async def push(command: Command = command) -> object:
                return core.handle(None, command)  # type: ignore[arg-type]

            assert consumer._run(push()) is None
            wait_until(lambda: seen.bodies == [b"2", b"3"])
            wait_until(lambda: consumer.position(queue) == 4)
        assert core.offsets.get(others) is None
