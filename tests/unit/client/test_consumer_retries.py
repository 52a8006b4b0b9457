"""Messages that fail, and messages in order, against a real broker."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

import penstock
from penstock.client.consumer import Consumer
from penstock.client.received import DEAD_LETTER, RETRY, ReceivedMessage, Retry
from penstock.errors import ConnectError
from penstock.protocol.bodies import LockBatchRequestBody, LockBatchResponseBody
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.remoting import RemotingClient, check
from penstock.runtime import Runtime
from penstock.testing import broker
from tests.support.consuming import QUICK, Seen, numbered, send, take
from tests.waiting import DEADLINE_S, wait_until


@pytest.fixture
def address() -> Iterator[str]:
    with broker(store=QUICK) as address:
        yield address


class NoWayBack:
    """A hook that lets no request pass which hands a message back; with `codes`, none of these."""

    def __init__(self, *codes: RequestCode) -> None:
        self._codes = codes or (RequestCode.CONSUMER_SEND_MSG_BACK,)

    def before_request(self, address: str, request: Command) -> None:
        if request.code in self._codes:
            raise ConnectError("the broker is down")

    def after_response(self, address: str, request: Command, response: Command) -> None:
        pass


def dead_letters(address: str, group: str, count: int) -> list[ReceivedMessage]:
    with Consumer(address, group=f"{group}-watch", start_from="first") as consumer:
        consumer.subscribe(f"%DLQ%{group}")
        found: list[ReceivedMessage] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(found) < count and time.monotonic() < deadline:
            found += consumer.poll(100, 0.2)
        return found


# -- any order -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [RETRY, False, Retry(2), "nonsense", ValueError("no")])
def test_what_is_not_done_comes_again(address: str, outcome: object) -> None:
    def once(message: ReceivedMessage) -> object:
        if message.tries:
            return None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    seen = Seen(once)
    with Consumer(address, group="g", start_from="first", listener=seen) as consumer:
        consumer.subscribe("T")
        with penstock.Producer(address) as producer:
            result = producer.send("T", b"body", tag="t", keys="k")
        wait_until(lambda: len(seen.messages) >= 2)
    first, second = seen.messages
    assert (first.tries, second.tries) == (0, 1)
    assert first.msg_id == second.msg_id == result.msg_id
    assert (second.topic, second.tag, second.keys, second.body) == ("T", "t", ["k"], b"body")
    assert second.queue.topic == "%RETRY%g"
    # Nothing is left: neither of the two copies comes again.
    with Consumer(address, group="g", start_from="first") as consumer:
        consumer.subscribe("T")
        consumer.wait_assigned()
        assert consumer.poll(1, 0.2) == []


def test_too_many_tries_end_in_the_dead_letters(address: str) -> None:
    seen = Seen(lambda message: RETRY)
    send(address, "T", b"poison", queue_key="k")
    send(address, "T", b"behind", queue_key="k")
    with Consumer(address, group="g", start_from="first", listener=seen, retries_max=3) as consumer:
        consumer.subscribe("T")
        wait_until(lambda: len(seen.messages) >= 8)
        found = dead_letters(address, "g", 2)
    assert sorted(message.body for message in found) == [b"behind", b"poison"]
    assert sorted(message.tries for message in seen.messages) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {message.properties["RETRY_TOPIC"] for message in found} == {"T"}


def test_why_it_failed_is_written_on_the_dead_letter(address: str) -> None:
    def fail(message: ReceivedMessage) -> object:
        if message.body == b"raises":
            raise ValueError(f"no customer {message.tries}\n" + "x" * 10_000)
        return Retry(-1, "not \x01 mine") if message.body == b"says" else DEAD_LETTER

    with Consumer(address, group="g", start_from="first", listener=fail, retries_max=1) as consumer:
        consumer.subscribe("T")
        send(address, "T", b"raises", b"says", b"silent")
        found = {message.body: message.properties for message in dead_letters(address, "g", 3)}
    raised = found[b"raises"]["PENSTOCK_REASON"]
    assert raised.startswith("ValueError: no customer 1 xxx")
    assert len(raised.encode()) <= 512
    assert found[b"says"]["PENSTOCK_REASON"] == "not mine"
    assert "PENSTOCK_REASON" not in found[b"silent"]
    assert {properties["PENSTOCK_ORIGIN"].split("/")[0] for properties in found.values()} == {"test-broker"}


def test_a_copy_that_is_sent_instead_carries_the_reason_too(address: str) -> None:
    seen = Seen(lambda message: Retry(-1, "broken"))
    send(address, "T", b"body")
    settings = {"group": "g", "start_from": "first", "rpc_hook": NoWayBack()}
    with Consumer(address, listener=seen, **settings) as consumer:
        consumer.subscribe("T")
        [dead] = dead_letters(address, "g", 1)
    assert dead.properties["PENSTOCK_REASON"] == "broken"
    assert int(dead.properties["PENSTOCK_FIRST_FAILED"]) >= seen.messages[0].store_timestamp
    queue = seen.messages[0].queue
    assert dead.properties["PENSTOCK_ORIGIN"] == f"{queue.broker_name}/{queue.queue_id}/0"


def test_sixteen_tries_are_the_default(address: str) -> None:
    seen = Seen(lambda message: RETRY)
    send(address, "T", b"poison")
    with Consumer(address, group="g", start_from="first", listener=seen) as consumer:
        consumer.subscribe("T")
        [found] = dead_letters(address, "g", 1)
    assert [message.tries for message in seen.messages] == list(range(17))
    assert found.msg_id == seen.messages[0].msg_id


def test_straight_to_the_dead_letters(address: str) -> None:
    seen = Seen(lambda message: DEAD_LETTER)
    send(address, "T", b"poison")
    with Consumer(address, group="g", start_from="first", listener=seen) as consumer:
        consumer.subscribe("T")
        [found] = dead_letters(address, "g", 1)
    assert found.body == b"poison"
    assert len(seen.messages) == 1


def test_a_delay_is_kept(address: str) -> None:
    with broker(store={"delay_levels": "1s 0s 2s"}) as slow:
        times: list[float] = []

        def once(message: ReceivedMessage) -> object:
            times.append(time.monotonic())
            return None if message.tries else Retry(1)

        send(slow, "T", b"body")
        with Consumer(slow, group="g", start_from="first", listener=once) as consumer:
            consumer.subscribe("T")
            wait_until(lambda: len(times) == 2)
        assert times[1] - times[0] >= 0.9


def test_if_the_broker_does_not_take_a_message_back_a_copy_is_sent(address: str) -> None:
    seen = Seen(lambda message: None if message.tries else RETRY)
    send(address, "T", b"before")
    with Consumer(address, group="g", start_from="last", listener=seen, rpc_hook=NoWayBack()) as consumer:
        consumer.subscribe("T")
        consumer.wait_assigned()
        wait_until(lambda: any(queue.topic == "%RETRY%g" for queue in consumer.assignment))
        body = bytes(range(256)) * 40  # large enough to be packed
        with penstock.Producer(address) as producer:
            result = producer.send("T", body, tag="t", keys="k1 k2")
        wait_until(lambda: len(seen.messages) >= 2)
    second = seen.messages[1]
    assert second.tries == 1
    assert (second.msg_id, second.topic, second.tag, second.keys) == (result.msg_id, "T", "t", ["k1", "k2"])
    assert second.body == body
    assert second.properties["ORIGIN_MESSAGE_ID"] == seen.messages[0].offset_msg_id


def test_a_copy_sent_too_often_ends_in_the_dead_letters(address: str) -> None:
    seen = Seen(lambda message: RETRY)
    send(address, "T", b"before")
    settings = {"start_from": "last", "retries_max": 2, "rpc_hook": NoWayBack()}
    with Consumer(address, group="g", listener=seen, **settings) as consumer:
        consumer.subscribe("T")
        consumer.wait_assigned()
        wait_until(lambda: any(queue.topic == "%RETRY%g" for queue in consumer.assignment))
        send(address, "T", b"poison")
        [found] = dead_letters(address, "g", 1)
    assert found.body == b"poison"
    assert [message.tries for message in seen.messages] == [0, 1, 2]


def test_if_nobody_takes_a_message_back_it_is_tried_again_here(address: str) -> None:
    seen = Seen(lambda message: None if message.tries else RETRY)
    send(address, "T", b"body", queue_key="k")
    hook = NoWayBack(
        RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2
    )
    with Consumer(address, group="g", start_from="first", listener=seen, rpc_hook=hook) as consumer:
        consumer.core.consumption.local_retry_ms = 50  # type: ignore[attr-defined]
        consumer.subscribe("T")
        wait_until(lambda: len(seen.messages) >= 2)
        wait_until(lambda: sum(consumer.position(q) for q in consumer.assignment if q.topic == "T") == 1)
    assert [message.tries for message in seen.messages] == [1, 1]  # the same object, tried twice
    assert seen.messages[0] is seen.messages[1]


def test_a_message_that_takes_too_long_is_handed_back(address: str) -> None:
    release = threading.Event()

    def hang_once(message: ReceivedMessage) -> None:
        if not message.tries:
            release.wait(120)

    seen = Seen(hang_once)
    send(address, "T", b"slow", queue_key="k")
    send(address, "T", b"quick", queue_key="k")
    with Consumer(
        address, group="g", start_from="first", listener=seen, consume_timeout_ms=200, threads=4
    ) as consumer:
        consumer.subscribe("T")
        wait_until(lambda: any(message.tries for message in seen.messages))
        # The queue is not held up by the message that hangs.
        wait_until(lambda: sum(consumer.position(q) for q in consumer.assignment if q.topic == "T") >= 1)
        release.set()


# -- in order --------------------------------------------------------------------------------------------------


@pytest.mark.invariant("I3")
def test_in_order_messages_of_a_queue_come_one_after_the_other(address: str) -> None:
    at_once: dict[int, int] = {}
    most = 0
    lock = threading.Lock()
    got: dict[int, list[int]] = {}

    def work(message: ReceivedMessage) -> None:
        nonlocal most
        queue = message.queue.queue_id
        with lock:
            at_once[queue] = at_once.get(queue, 0) + 1
            most = max(most, at_once[queue])
        time.sleep(0.001)
        got.setdefault(queue, []).append(int(message.body))
        with lock:
            at_once[queue] -= 1

    send(address, "T", *numbered(200))
    with Consumer(address, group="g", start_from="first", listener=work, orderly=True, threads=8) as consumer:
        consumer.subscribe("T")
        wait_until(lambda: sum(map(len, got.values())) >= 200)
    assert most == 1
    assert len(got) == 4
    assert all(numbers == sorted(numbers) for numbers in got.values())


def test_in_order_a_failure_holds_its_queue_and_no_other(address: str) -> None:
    failures = iter([RETRY, Retry(5), None])
    seen = Seen(lambda message: next(failures) if message.body == b"1" else None)
    send(address, "T", *numbered(4), queue_key="k")
    with Consumer(
        address, group="g", start_from="first", listener=seen, orderly=True, rest_ms=50
    ) as consumer:
        consumer.subscribe("T")
        wait_until(lambda: b"3" in seen.bodies)
    assert seen.bodies == [b"0", b"1", b"1", b"1", b"2", b"3"]


def test_in_order_with_a_limit_a_poisoned_message_goes_to_the_dead_letters(address: str) -> None:
    seen = Seen(lambda message: RETRY if message.body == b"1" else None)
    send(address, "T", *numbered(3), queue_key="k")
    with Consumer(
        address, group="g", start_from="first", listener=seen, orderly=True, rest_ms=10, retries_max=2
    ) as consumer:
        consumer.subscribe("T")
        wait_until(lambda: b"2" in seen.bodies)
        [found] = dead_letters(address, "g", 1)
    assert found.body == b"1"
    assert seen.bodies == [b"0", b"1", b"1", b"1", b"2"]


def test_in_order_one_consumer_at_a_time_has_a_queue(address: str) -> None:
    """Locks: the second consumer gets a queue only when the first has finished its message."""
    events: list[tuple[str, bytes]] = []
    begun, release = threading.Event(), threading.Event()

    def slow(message: ReceivedMessage) -> None:
        events.append(("begin", message.body))
        begun.set()
        release.wait(120)
        events.append(("end", message.body))

    def quick(message: ReceivedMessage) -> None:
        events.append(("second", message.body))

    settings = {"group": "g", "start_from": "first", "orderly": True}
    first = Consumer(address, listener=slow, **settings).start()
    first.subscribe("T")
    first.wait_assigned()
    send(address, "T", b"a")
    assert begun.wait(60)
    second = Consumer(address, listener=quick, **settings).start()
    second.subscribe("T")
    closing = threading.Thread(target=first.close)
    closing.start()
    time.sleep(0.3)
    assert ("end", b"a") not in events
    release.set()
    closing.join(60)
    send(address, "T", *numbered(8))
    wait_until(lambda: {body for name, body in events if name == "second"} >= set(numbered(8)))
    second.close()
    # The message that the first finished is not given to the second.
    assert ("second", b"a") not in events


def test_in_order_iterating_and_by_hand(address: str) -> None:
    send(address, "T", *numbered(4), queue_key="k")
    with Consumer(address, group="g", start_from="first", orderly=True) as consumer:
        consumer.subscribe("T")
        assert take(consumer, 2) == [b"0", b"1"]
    with Consumer(
        address, group="g", start_from="first", orderly=True, auto_ack=False, close_timeout_ms=0
    ) as consumer:
        consumer.subscribe("T")
        messages = iter(consumer)
        message = next(messages)
        assert message.body == b"2"
        got: list[bytes] = []
        thread = threading.Thread(target=lambda: got.append(next(messages).body))
        thread.start()
        time.sleep(0.1)
        assert got == []  # the next one waits for the acknowledgement
        consumer.ack(message)
        thread.join(60)
        assert got == [b"3"]


def test_in_order_a_lock_that_somebody_else_has_is_noticed(address: str) -> None:
    seen = Seen()
    send(address, "T", b"0")
    settings = {"group": "g", "start_from": "first", "orderly": True, "lock_interval_ms": 100}
    with Consumer(address, listener=seen, **settings) as consumer:
        consumer.subscribe("T")
        wait_until(lambda: len(seen.messages) == 1)
        queue = seen.messages[0].queue
        with penstock.Admin(address) as admin:
            [node] = {found.address for found in admin.cluster_status().brokers}

        async def ask(code: RequestCode, client_id: str) -> Command:
            client = RemotingClient(runtime=Runtime.system())
            try:
                body = LockBatchRequestBody(client_id, "g", (queue,)).encode()
                return check(await client.call(node, Command(code, body=body), 60_000))
            finally:
                await client.close()

        def steal() -> bool:
            """The consumer may lock it anew between the two requests."""
            asyncio.run(ask(RequestCode.UNLOCK_BATCH_MQ, consumer.client_id))
            answer = asyncio.run(ask(RequestCode.LOCK_BATCH_MQ, "thief@1"))
            return LockBatchResponseBody.decode(answer.body).locked == (queue,)

        wait_until(steal, "a lock for the thief")
        wait_until(lambda: queue not in consumer.assignment)
        asyncio.run(ask(RequestCode.UNLOCK_BATCH_MQ, "thief@1"))
        wait_until(lambda: queue in consumer.assignment)
