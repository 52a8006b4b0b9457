"""Requests and their replies, against a real broker."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

import penstock
from penstock.client.async_producer import AsyncProducer
from penstock.client.consumer import Consumer
from penstock.client.received import ReceivedMessage
from penstock.client.request_reply import Replies
from penstock.errors import MessageError, ReplyTimeoutError, ResponseError
from penstock.protocol.command import Command
from penstock.testing import broker
from tests.waiting import wait_until


@pytest.fixture
def address() -> Iterator[str]:
    with broker() as address:
        yield address


class Replier:
    """A consumer that replies to everything."""

    def __init__(self, address: str, gate: threading.Event | None = None) -> None:
        self.producer = penstock.Producer(address, group="repliers")
        self.consumer = Consumer(address, group="answers", start_from="first", listener=self.listen)
        self.gate = gate
        self.failures: list[Exception] = []
        self.requests: list[ReceivedMessage] = []

    def listen(self, message: ReceivedMessage) -> None:
        self.requests.append(message)
        if self.gate is not None:
            self.gate.wait(120)
        try:
            self.producer.reply(message, b"re: " + message.body, properties={"by": "me"})
        except penstock.PenstockError as error:
            self.failures.append(error)

    def __enter__(self) -> "Replier":
        self.producer.start()
        self.consumer.start()
        self.consumer.subscribe("T")
        return self

    def __exit__(self, *parts: object) -> None:
        self.consumer.close()
        self.producer.close()


def test_a_request_gets_its_reply(address: str) -> None:
    # A send that is slow is not sent again: its request would come twice.
    with Replier(address) as replier, penstock.Producer(address, send_timeout_ms=60_000) as producer:
        reply = producer.request("T", b"ping", timeout_ms=60_000, tag="t", properties={"mine": "x"})
        assert (reply.body, reply.properties["by"]) == (b"re: ping", "me")
        assert reply.properties["MSG_TYPE"] == "reply"
        [request] = replier.requests
        assert (request.tag, request.properties["mine"], request.properties["TTL"]) == ("t", "x", "60000")
        assert request.properties["REPLY_TO_CLIENT"] == producer.client_id
        whole = penstock.Message("T", b"whole", {"KEYS": "k"})
        assert producer.request(whole, timeout_ms=60_000).body == b"re: whole"
        large = bytes(range(256)) * 64
        assert producer.request("T", large, timeout_ms=60_000).body == b"re: " + large
    assert replier.failures == []


def test_many_at_once_get_their_own(address: str) -> None:
    async def scenario() -> None:
        async with AsyncProducer(address, linger_ms=5) as producer:
            bodies = [b"%d" % number for number in range(100)]
            replies = await asyncio.gather(
                *(producer.request("T", body, timeout_ms=60_000) for body in bodies)
            )
            assert [reply.body for reply in replies] == [b"re: " + body for body in bodies]
            assert producer._instance is not None
            assert len(producer._instance.replies) == 0

    with Replier(address):
        asyncio.run(scenario())


def test_a_reply_that_does_not_come_is_an_error_and_a_late_one_is_refused(address: str) -> None:
    with penstock.Producer(address) as producer:
        with pytest.raises(ReplyTimeoutError, match="200 ms"):
            producer.request("T", b"nobody", timeout_ms=200)
        with Replier(address) as replier:
            wait_until(lambda: len(replier.failures) == 1)
            [failure] = replier.failures
            assert isinstance(failure, ResponseError)
            assert "nobody waits" in str(failure)
            # And the next one works.
            assert producer.request("T", b"ping", timeout_ms=60_000).body == b"re: ping"
        for wrong in (0, -1, 10**9):
            with pytest.raises(MessageError):
                producer.request("T", b"x", timeout_ms=wrong)


def test_the_requester_is_gone(address: str) -> None:
    gone = threading.Event()
    with Replier(address, gone) as replier:
        producer = penstock.Producer(address, instance_name="mine").start()
        thread = threading.Thread(target=_ask_in_vain, args=(producer,))
        thread.start()
        wait_until(lambda: len(replier.requests) == 1)
        producer.close()
        thread.join(60)
        gone.set()
        wait_until(lambda: len(replier.failures) == 1)
    assert "not connected" in str(replier.failures[0])


def _ask_in_vain(producer: penstock.Producer) -> None:
    with pytest.raises(penstock.ClientClosedError):
        producer.request("T", b"ping", timeout_ms=60_000)


def test_what_asks_for_no_reply_gets_none(address: str) -> None:
    with penstock.Producer(address) as producer:
        producer.send("T", b"plain")
        with Replier(address) as replier:
            wait_until(lambda: len(replier.failures) == 1)
    assert isinstance(replier.failures[0], MessageError)


def test_replies_for_nobody_and_hostile_ones() -> None:
    replies = Replies()
    fields = {
        "producerGroup": "g",
        "topic": "c_REPLY_TOPIC",
        "queueId": "0",
        "sysFlag": "1",
        "bornTimestamp": "0",
        "flag": "0",
        "properties": "CORRELATION_ID\x01x\x02",
        "bornHost": "127.0.0.1:1",
        "storeHost": "127.0.0.1:1",
        "storeTimestamp": "0",
    }

    async def scenario() -> None:
        request = Command(326, fields, b"not packed at all")
        assert replies.handle(None, request).code == 1  # type: ignore[arg-type]
        waiting = replies.expect("x")
        assert replies.handle(None, request).code == 1  # type: ignore[arg-type]
        with pytest.raises(penstock.PenstockError):
            await waiting
        assert len(replies) == 0

    asyncio.run(scenario())
