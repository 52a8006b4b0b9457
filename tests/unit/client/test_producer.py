"""The synchronous producer against a real broker in this process."""

import asyncio
import concurrent.futures
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator

import pytest

import penstock
from penstock.client.producer import Producer
from penstock.errors import ClientClosedError, ClientError, ConnectError
from penstock.testing import async_broker, broker


@pytest.fixture
def address() -> Iterator[str]:
    with broker() as found:
        yield found


def stored(address: str, result: penstock.SendResult):
    with penstock.Admin(address) as admin:
        (message,) = admin.read_messages(result.queue, result.queue_offset, limit=1)
        return message


@pytest.mark.feature("sends", "fifth-seed")
@pytest.mark.seed("S4-2")
@pytest.mark.seed("S2-34")
@pytest.mark.invariant("I2")
def test_the_first_example_of_the_documentation(address):
    with penstock.Producer(address, group="g") as producer:
        result = producer.send(penstock.Message.of("Docs", b"x", tag="a", keys="k"))
    message = stored(address, result)
    assert (message.body, message.tag, message.keys) == (b"x", "a", ["k"])
    assert message.msg_id == result.msg_id
    assert message.offset_msg_id == result.offset_msg_id


@pytest.mark.seed("S2-35")
def test_sends_that_end_later(address):
    with Producer(address) as producer:
        futures = [producer.send_async("Later", b"%d" % n) for n in range(50)]
        assert all(isinstance(future, concurrent.futures.Future) for future in futures)
        places = {(f.result().queue, f.result().queue_offset) for f in futures}
        assert len(places) == 50


def test_lingering_messages_are_stored_as_they_were_sent(address):
    with Producer(address, linger_ms=5) as producer:
        futures = [
            producer.send_async(
                "Linger", b"%d" % n, tag=f"t{n}", keys=f"k{n}", properties={"n": str(n)}, flag=n
            )
            for n in range(300)
        ]
        results = [future.result() for future in futures]
    with penstock.Admin(address) as admin:
        for number in (0, 1, 150, 299):
            (message,) = admin.read_messages(results[number].queue, results[number].queue_offset, limit=1)
            assert message.body == b"%d" % number
            assert (message.tag, message.keys, message.flag) == (f"t{number}", [f"k{number}"], number)
            assert message.properties["n"] == str(number)
            assert message.msg_id == results[number].msg_id
            assert message.offset_msg_id == results[number].offset_msg_id
        assert admin.describe_topic("Linger").messages == 300


def test_batches_durability_and_compression_of_a_real_broker(address):
    with Producer(address) as producer:
        results = producer.send_batch([penstock.Message.of("Batch", b"%d" % n) for n in range(20)])
        assert [r.queue_offset for r in results] == list(range(20))
        assert len({r.offset_msg_id for r in results}) == 20
        assert producer.send("Batch", b"safe", durability="flushed").durability == "flushed"
        batch = producer.send_batch([penstock.Message.of("Batch", b"s")] * 3, durability="flushed")
        assert {r.durability for r in batch} == {"flushed"}
        large = b"compress me " * 1000
        result = producer.send("Batch", large)
    message = stored(address, result)
    assert message.body == large
    assert zlib.decompress(message.stored.body) == large


@pytest.mark.seed("S2-51")
def test_a_one_way_send_arrives(address):
    with Producer(address) as producer:
        producer.send("OneWay", b"first")
        producer.send_oneway("OneWay", b"second")
        producer.send("OneWay", b"third")  # the same connection, so the second has arrived
    with penstock.Admin(address) as admin:
        assert admin.describe_topic("OneWay").messages == 3


@pytest.mark.invariant("I3")
@pytest.mark.parametrize("settings", [{}, {"linger_ms": 1}])
def test_a_key_keeps_its_order(address, settings):
    topic = f"Keyed{len(settings)}"
    with Producer(address, **settings) as producer:
        futures = [producer.send_async(topic, b"%d" % n, queue_key=f"k{n % 5}") for n in range(200)]
        results = [future.result() for future in futures]
    for key in range(5):
        mine = [results[n] for n in range(200) if n % 5 == key]
        assert len({r.queue for r in mine}) == 1
        assert [r.queue_offset for r in mine] == sorted(r.queue_offset for r in mine)


def test_threads_share_a_producer(address):
    with Producer(address, linger_ms=1) as producer:
        results = []

        def work(name):
            results.extend(producer.send("Threads", b"%d-%d" % (name, n)) for n in range(25))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({(r.queue, r.queue_offset) for r in results}) == 100


def test_flush_waits_for_what_was_enqueued(address):
    seen = []
    with Producer(address, linger_ms=10_000) as producer:
        for number in range(100):
            producer.enqueue("Flush", b"%d" % number, on_result=lambda result, error: seen.append(result))
        producer.flush()
        assert len(seen) == 100
        assert [q.topic for q in producer.queues("Flush")][:1] == ["Flush"]


def test_a_callback_may_send_but_not_wait(address):
    outcome: concurrent.futures.Future[object] = concurrent.futures.Future()
    with Producer(address) as producer:

        def on_result(result, error):
            try:
                producer.send("Callback", b"deadlock")
            except ClientError as refused:
                outcome.set_result((refused, producer.send_async("Callback", b"fine")))

        producer.enqueue("Callback", b"x", on_result=on_result)
        refused, later = outcome.result(60)
        assert "event loop" in str(refused)
        assert later.result(60).queue.topic == "Callback"


def test_a_closed_producer_says_so(address):
    producer = Producer(address)
    assert producer.client_id == ""
    producer.send("Closed", b"x")
    assert "@" in producer.client_id
    producer.close()
    producer.close()
    calls = (producer.send, producer.send_async, producer.send_oneway, producer.enqueue)
    for call in calls:
        with pytest.raises(ClientClosedError):
            call("Closed", b"x")
    with pytest.raises(ClientClosedError):
        producer.send_batch([penstock.Message.of("T", b"x")])
    producer.flush()


def test_close_sends_what_lingers(address):
    with Producer(address, linger_ms=10_000) as producer:
        future = producer.send_async("CloseFlush", b"x")
    assert future.result(0).queue_offset == 0


def test_clients_of_a_process_share_thread_and_connections(address):
    with Producer(address) as one, Producer(address) as two, penstock.Admin(address) as admin:
        assert one.client_id == two.client_id
        assert sum(t.name == "penstock-client" for t in threading.enumerate()) == 1
        admin.list_topics()
    assert not any(t.name == "penstock-client" for t in threading.enumerate())


def test_a_start_that_fails_leaves_nothing():
    with pytest.raises(ConnectError, match="no name server answers"):
        Producer("127.0.0.1:1").start()
    with pytest.raises(ConnectError):
        penstock.Admin("127.0.0.1:1").list_topics()
    assert not any(t.name == "penstock-client" for t in threading.enumerate())


def test_a_forgotten_producer_is_reported(address):
    producer = Producer(address).start()
    thread = producer._thread
    closing = producer._async
    kept = [producer]
    del producer
    with pytest.warns(ResourceWarning, match="without being closed"):
        kept.clear()
    thread.run(closing.close())
    thread.release()


def test_a_program_that_ends_without_closing_loses_nothing(address):
    program = (
        "import penstock\n"
        f"producer = penstock.Producer({address!r}, linger_ms=60000)\n"
        "for n in range(10): producer.enqueue('Exit', b'%d' % n)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    with penstock.Admin(address) as admin:
        assert admin.describe_topic("Exit").messages == 10


def test_a_cancelled_future_does_not_disturb_its_batch(address):
    with Producer(address, linger_ms=60_000) as producer:
        first, second = (producer.send_async("Cancel", b"%d" % n) for n in range(2))
        assert first.cancel()
        producer.flush()
        assert second.result(60).queue_offset in (0, 1)


@pytest.mark.seed("S2-50")
def test_sync_and_async_faces_work_side_by_side():
    async def main():
        async with async_broker() as address, penstock.AsyncProducer(address) as producer:
            first = await producer.send("Both", b"async")
            with_thread = await asyncio.to_thread(_send_in_thread, address)
            assert {first.queue.topic, with_thread.queue.topic} == {"Both"}

    asyncio.run(main())


def _send_in_thread(address):
    with Producer(address) as producer:
        return producer.send("Both", b"sync")


def test_importing_penstock_is_cheap_and_clients_come_when_asked_for():
    program = (
        "import sys, penstock\n"
        "assert not [m for m in sys.modules if m.startswith('penstock.client') or m == 'asyncio'], 'eager'\n"
        "from penstock import Producer, AsyncProducer, Consumer, AsyncConsumer, Admin, Message, SendError\n"
        "assert set(penstock.__all__) <= set(dir(penstock))\n"
        "try:\n    penstock.nothing\n"
        "except AttributeError: print('ok')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "ok\n"
