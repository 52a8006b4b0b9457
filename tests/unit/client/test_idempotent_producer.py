"""Idempotent producers: which numbers their sends have, where a retry goes, and what they refuse to do."""

import asyncio
from dataclasses import replace

import pytest

from penstock.broker.processors.send import SendProcessor
from penstock.client.async_producer import AsyncProducer
from penstock.client.results import SendResult, SendStatus
from penstock.client.send_attempts import SendAttempts, Verdict
from penstock.errors import (
    CallTimeoutError,
    MessageError,
    OptionError,
    SendFailedError,
    SendUnknownError,
)
from penstock.message import Message
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.testing import EmbeddedBroker, async_broker
from tests.unit.client.producer_cluster import FakeBroker, cluster

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE


def run(scenario, brokers=1, queues=2, *, knows=True, **settings):
    """Run a scenario with a started producer and brokers that keep sequences, unless told otherwise."""

    async def main():
        async with cluster(brokers, ("T", "U"), queues) as fake:
            for broker in fake.brokers:
                if knows:
                    broker.behave = Remembering(broker)
            settings.setdefault("idempotent", True)
            async with AsyncProducer(fake.address, "pg", **settings) as producer:
                await scenario(fake, producer)

    asyncio.run(main())


class Remembering:
    """What a broker does with sequences; `lose` answers are not given."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.known: dict[tuple[str, ...], Command] = {}
        self.lose = 0
        self.refuse: tuple[int, str] | None = None

    def __call__(self, connection, request):
        fields = request.fields
        if self.refuse is not None:
            (code, remark), self.refuse = self.refuse, None
            return request.answer(code, remark)
        key = tuple(fields[name] for name in ("b", "e", "penstockProducer", "penstockSequence"))
        if key in self.known:
            first = self.known[key]
            answer = request.answer(first.code, fields={**first.fields, "penstockRepeated": "true"})
        else:
            answer = self.known[key] = self.broker.store(request, penstockRepeated="false")
        if self.lose:
            self.lose -= 1
            connection.close("its answer is lost")
            return None
        return answer


def sends(fake):
    return [
        request for broker in fake.brokers for request in broker.requests if request.code in (SEND, BATCH)
    ]


def sequence(request):
    return int(request.fields["penstockSequence"])


# -- numbers -------------------------------------------------------------------------------------------------


def test_every_message_has_the_next_number_and_one_random_producer():
    async def scenario(fake, producer):
        for _ in range(3):
            await producer.send("T", b"x")
        await producer.send_batch([Message.of("T", b"%d" % n) for n in range(5)])
        result = await producer.send("U", b"y")
        assert not result.is_repeated
        assert [sequence(request) for request in sends(fake)] == [0, 1, 2, 3, 8]
        (name,) = {request.fields["penstockProducer"] for request in sends(fake)}
        assert len(bytes.fromhex(name)) == 16
        async with AsyncProducer(fake.address, "pg", idempotent=True) as other:
            await other.send("T", b"z")
        assert sends(fake)[-1].fields["penstockProducer"] != name

    run(scenario)


def test_a_producer_that_is_not_idempotent_says_nothing():
    async def scenario(fake, producer):
        await producer.send("T", b"x")
        assert not [name for name in sends(fake)[0].fields if name.startswith("penstock")]

    run(scenario, knows=False, idempotent=False)


# -- retries -------------------------------------------------------------------------------------------------


@pytest.mark.feature("idempotent-sends", "own")
@pytest.mark.parametrize("batch", [False, True])
def test_a_lost_answer_is_asked_for_again_at_the_same_queue(batch):
    async def scenario(fake, producer):
        for _ in range(6):
            for broker in fake.brokers:
                broker.behave.lose = 1
            if batch:
                results = await producer.send_batch([Message.of("T", b"%d" % n) for n in range(3)])
                assert all(result.is_repeated for result in results)
                assert [result.queue_offset for result in results] == [
                    results[0].queue_offset + n for n in range(3)
                ]
            else:
                result = await producer.send("T", b"x")
                assert result.is_repeated
                assert result.attempts == 2
        by_number = {}
        for broker in fake.brokers:
            for request in broker.requests:
                if request.code in (SEND, BATCH):
                    place = (broker.name, request.fields["e"], bytes(request.body))
                    by_number.setdefault(sequence(request), []).append(place)
        assert all(len(places) == 2 and len(set(places)) == 1 for places in by_number.values()), by_number
        assert len(fake.stored) == 6 * (3 if batch else 1)

    run(scenario, brokers=2, retries=2)


def test_what_was_refused_may_go_to_another_broker():
    """Refused is not stored: only what may be stored is bound to where it may be."""

    async def scenario(fake, producer):
        for _ in range(4):
            for broker in fake.brokers:
                broker.behave.refuse = (14, "closing")
            result = await producer.send("T", b"x")
            assert 1 < result.attempts <= 4
        assert len(fake.stored) == 4
        places = {request.fields["penstockSequence"]: set() for request in sends(fake)}
        for broker in fake.brokers:
            for request in broker.requests:
                if request.code == SEND:
                    places[request.fields["penstockSequence"]].add(broker.name)
        assert any(len(names) > 1 for names in places.values())

    run(scenario, brokers=3, retries=4)


def test_attempts_are_bound_from_the_moment_the_outcome_is_not_known():
    queues = [MessageQueue("T", name, 0) for name in "abc"]
    turns = iter(range(100))
    attempts = SendAttempts(lambda _, avoid: queues[next(turns) % 3], attempts_max=9, is_idempotent=True)
    assert attempts.choose(queues) == queues[0]
    assert attempts.refused(Command(2, {})) is Verdict.RETRY
    assert attempts.choose(queues) == queues[1]
    assert attempts.lost(CallTimeoutError("no answer")) is Verdict.RETRY
    assert attempts.is_bound
    for _ in range(3):
        assert attempts.choose(queues) == queues[1]
        assert attempts.refused(Command(2, {})) is Verdict.RETRY
    plain = SendAttempts(lambda _, avoid: queues[next(turns) % 3], attempts_max=9)
    plain.choose(queues)
    plain.lost(CallTimeoutError("no answer"))
    assert not plain.is_bound


def test_a_broker_that_keeps_no_sequences_is_noticed_at_the_first_answer():
    async def scenario(fake, producer):
        with pytest.raises(SendUnknownError, match="keeps no sequences") as caught:
            await producer.send("T", b"x")
        assert isinstance(caught.value.result, SendResult)
        assert caught.value.result.status is SendStatus.OK
        assert "idempotent" in caught.value.hint

    run(scenario, knows=False)


def test_a_sequence_that_is_too_old_is_unknown_and_not_sent_again():
    async def scenario(fake, producer):
        def refuse(connection, request):
            return request.answer(13, "older than those that are kept", {"penstockOutcome": "unknown"})

        fake.brokers[0].behave = refuse
        with pytest.raises(SendUnknownError, match="older"):
            await producer.send("T", b"x")
        assert len(sends(fake)) == 1

    run(scenario)


# -- numbers of the program's --------------------------------------------------------------------------------


def test_a_program_that_numbers_its_messages_goes_on_after_a_restart():
    async def scenario(fake, producer):
        first = await producer.send("T", b"x", queue_key="k", sequence=17)
        assert not first.is_repeated
        async with AsyncProducer(fake.address, "pg", idempotent=True, producer_id="shop-1") as restarted:
            again = await restarted.send("T", b"x", queue_key="k", sequence=17)
            assert again.is_repeated
            assert (again.queue, again.queue_offset) == (first.queue, first.queue_offset)
            await restarted.send("T", b"y", queue=first.queue, sequence=18)
        assert len(fake.stored) == 2
        assert {request.fields["penstockProducer"] for request in sends(fake)} == {"shop-1"}

    run(scenario, producer_id="shop-1")


def test_a_sequence_stays_with_the_queue_of_its_key_while_its_broker_set_has_no_master():
    async def main():
        async with cluster(2, ("T",), 2) as fake:

            async def run_once():
                settings = {"idempotent": True, "producer_id": "till", "retries": 0, "send_timeout_ms": 500}
                async with AsyncProducer(fake.address, "pg", **settings) as producer:
                    return await producer.send("T", b"sale", queue_key="till-3", sequence=4711)

            for broker in fake.brokers:
                broker.behave = Remembering(broker)
                broker.behave.lose = 1
            with pytest.raises(SendUnknownError):
                await run_once()
            [home] = [broker for broker in fake.brokers if broker.stored]
            route = fake.name_server.routes["T"]
            slaves_only = tuple(
                replace(data, broker_addrs={1: home.address}) if data.broker_name == home.name else data
                for data in route.broker_datas
            )
            fake.name_server.routes["T"] = replace(route, broker_datas=slaves_only)
            for broker in fake.brokers:
                broker.behave.lose = 0
            with pytest.raises((SendFailedError, SendUnknownError)):
                await run_once()
            assert len(fake.stored) == 1
            fake.name_server.routes["T"] = route
            assert (await run_once()).is_repeated
            assert len(fake.stored) == 1

    asyncio.run(main())


def test_messages_with_numbers_of_their_own_travel_alone():
    async def scenario(fake, producer):
        futures = [producer.send_nowait("T", b"x", queue_key="k", sequence=n * 3) for n in range(20)]
        await asyncio.gather(*futures)
        assert [request.code for request in sends(fake)] == [SEND] * 20
        assert [sequence(request) for request in sends(fake)] == [n * 3 for n in range(20)]

    run(scenario, producer_id="shop-1", linger_ms=5)


@pytest.mark.parametrize(
    ("settings", "parts", "reason"),
    [
        ({}, {"sequence": 1, "queue_key": "k"}, "no producer_id"),
        ({"producer_id": "p"}, {"queue_key": "k"}, "no sequence was given"),
        ({"producer_id": "p"}, {"sequence": 1}, "no queue"),
        ({"producer_id": "p"}, {"sequence": -1, "queue_key": "k"}, "sequence is -1"),
        ({"producer_id": "p"}, {"sequence": 2**62, "queue_key": "k"}, "sequence is"),
        ({"producer_id": "p"}, {"sequence": True, "queue_key": "k"}, "sequence is True"),
    ],
)
def test_a_send_that_could_not_be_recognised_is_refused(settings, parts, reason):
    async def scenario(fake, producer):
        with pytest.raises(MessageError, match=reason):
            await producer.send("T", b"x", **parts)
        assert not sends(fake)

    run(scenario, **settings)


def test_kinds_that_cannot_have_a_number_of_the_programs_are_refused():
    async def scenario(fake, producer):
        with pytest.raises(MessageError, match="batch"):
            await producer.send_batch([Message.of("T", b"x")])
        with pytest.raises(MessageError, match="transaction"):
            async with producer.transaction("T", b"x", queue_key="k", sequence=1):
                pass
        with pytest.raises(MessageError, match="takes no idempotent sends"):
            await producer.send("%RETRY%g", b"x", queue_key="k", sequence=1)
        assert not sends(fake)

    run(scenario, producer_id="p")


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(OptionError, match="idempotent is not on"):
        AsyncProducer("a", producer_id="p")
    for name in ("", "a b", "x" * 65, "ä", "a\n"):
        if name:
            with pytest.raises(OptionError, match="producer_id"):
                AsyncProducer("a", idempotent=True, producer_id=name)


# -- with a real broker --------------------------------------------------------------------------------------


def bodies(embedded: EmbeddedBroker, topic: str = "T") -> list[bytes]:
    assert embedded.broker is not None
    store = embedded.broker.store
    return [
        message.body
        for queue in range(8)
        for message in store.read(topic, queue, store.min_offset(topic, queue), 10_000)
    ]


@pytest.mark.feature("idempotent-sends", "own")
def test_every_kind_of_send_is_idempotent_at_a_real_broker():
    async def main():
        async with (
            async_broker() as address,
            AsyncProducer(address, "pg", idempotent=True, linger_ms=1) as producer,
        ):
            assert (await producer.send("T", b"one")).is_ok
            results = await asyncio.gather(*(producer.send_nowait("T", b"%d" % n) for n in range(300)))
            assert all(result.is_ok and not result.is_repeated for result in results)
            assert (await producer.send("T", b"later", delay=3600)).recall_handle
            async with producer.transaction("T", b"half") as transaction:
                assert transaction.msg_id
            await producer.send_oneway("T", b"tick")
            with pytest.raises(SendFailedError):
                await producer.send("TBW102", b"reserved")

    asyncio.run(main())


@pytest.mark.fault("F3")
@pytest.mark.invariant("I1")
@pytest.mark.parametrize(
    ("one_in", "settings"), [(7, {}), (3, {"linger_ms": 1, "batch_size": 20})], ids=["singly", "batches"]
)
def test_a_storm_of_lost_answers_leaves_every_message_exactly_once(monkeypatch, one_in, settings):
    """Instead of some answers the connection breaks, after the messages on it were stored or before."""
    answer = SendProcessor._answer
    answers = lost = 0

    def lose(self, connection, command, fields, written):
        nonlocal answers, lost
        answers += 1
        if answers % one_in == 0 and lost < 5:
            lost += 1
            connection.close("an answer is lost")
        else:
            answer(self, connection, command, fields, written)

    async def main():
        embedded = EmbeddedBroker(None)
        await embedded.start()
        try:
            async with AsyncProducer(
                embedded.address, "pg", idempotent=True, retries=60, send_timeout_ms=10_000, **settings
            ) as producer:
                await producer.send("T", b"first")
                monkeypatch.setattr(SendProcessor, "_answer", lose)
                for start in range(0, 120, 10):
                    futures = [producer.send_nowait("T", b"%d" % n) for n in range(start, start + 10)]
                    async with producer.transaction("T", b"half %d" % start):
                        pass
                    batch = [Message.of("T", b"batch %d" % n) for n in range(start, start + 10)]
                    await asyncio.gather(*futures, producer.send_batch(batch))
                monkeypatch.setattr(SendProcessor, "_answer", answer)
            found = bodies(embedded)
        finally:
            await embedded.stop()
        wanted = [b"first", *(b"half %d" % n for n in range(0, 120, 10))]
        wanted += [prefix % n for n in range(120) for prefix in (b"%d", b"batch %d")]
        assert sorted(found) == sorted(wanted)
        assert lost == 5

    asyncio.run(main())
