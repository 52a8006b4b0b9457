"""Requests that are small, or that an account may send anyway, and cost the server far more than their size (A14).

Each did stall the loop, or take memory or threads, for all clients of a server. Effort is counted, or compared with
that of the same machine for something known; the clock of the wall has no say.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import threading
import time
import tracemalloc
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from penstock._hot.index import find_key
from penstock._hot.layout import ENTRY_SIZE, INDEX_HEADER_SIZE
from penstock._hot.mapped import MappedBytes
from penstock.broker.transaction_ends import TransactionEnds
from penstock.coordinator.balancing_part import BalancingPart
from penstock.errors import CodecError
from penstock.protocol.bodies import ConsumerData, HeartbeatData, MessageQueue, SubscriptionData
from penstock.protocol.bodies.balance import ClientBeatBody, ClientKind
from penstock.protocol.bodies.pop import BatchAck, BatchAckMessageRequestBody, decode_bits
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.topic_names import HALF_DONE_TOPIC
from penstock.remoting import RemotingClient
from penstock.remoting.threads import WORKERS
from penstock.runtime import Runtime
from penstock.testing import ManualClock
from tests.abuse.test_filters import million_additions_s
from tests.abuse.test_limits_remoting import BIG, QUESTION
from tests.support.coordinator_wire import coordinator, leading
from tests.support.guarded import READER, caller, guarded
from tests.support.guarded import run as run_guarded
from tests.support.popping import BROKER_NAME, fill, open_checks, pop, popped, take
from tests.support.running_broker import Bench, run, running, send_fields
from tests.support.transaction_bench import COMMIT, end, prepare
from tests.waiting import until

ACKED_MAX = 32 * 1024
NOTICES_MAX, NOTICE_SPAN_MS = 8, 500
# As long as the text of one set may be.
MOST_BITS = base64.b64encode(b"\xff" * 4_092).decode()


def acks_of(bits: str, count: int) -> bytes:
    """A request that acknowledges the same places so many times."""
    one = {"c": "g", "t": "T", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1, "b": bits}
    return json.dumps({"brokerName": BROKER_NAME, "acks": [one] * count}).encode()


@pytest.mark.abuse("A14")
def test_set_of_acknowledged_messages_is_read_in_linear_time() -> None:
    started = time.thread_time()
    assert decode_bits(MOST_BITS) == tuple(range(4_092 * 8))
    # It took 15 times as long: 40 ms where the million takes 10, and one request had room for 750 such sets.
    assert time.thread_time() - started < 2 * million_additions_s()


@pytest.mark.abuse("A14")
def test_acknowledgements_of_one_request_name_only_so_many_messages(tmp_path: Path) -> None:
    """Four megabytes of them stalled the broker for half a minute, and took a gigabyte of memory."""
    with pytest.raises(CodecError, match=f"more than {ACKED_MAX} messages"):
        BatchAckMessageRequestBody.decode(acks_of(MOST_BITS, 2))
    referred = {"acks": [json.loads(acks_of(MOST_BITS, 1))["acks"][0], *[{"$ref": "$.acks[0]"}] * 20]}
    with pytest.raises(CodecError, match=f"more than {ACKED_MAX} messages"):
        BatchAckMessageRequestBody.decode(json.dumps(referred).encode())

    async def scenario() -> None:
        """Also of an account without any right to what it names: the body is read to find that out."""
        async with guarded(tmp_path) as server, caller(READER) as reader:
            started = time.thread_time()
            command = Command(RequestCode.BATCH_ACK_MESSAGE, {}, acks_of(MOST_BITS, 100))
            assert (await reader.call(server.broker_address, command, 60_000)).code != 0
            assert time.thread_time() - started < 40 * million_additions_s()

    run_guarded(scenario)


@pytest.mark.abuse("A14")
@pytest.mark.parametrize("in_order", [False, True])
def test_pop_that_a_request_acknowledges_many_times_is_one_record(tmp_path: Path, in_order: bool) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench.client, 2)
            answer = await pop(bench.client, order=str(in_order).lower())
            found = popped(answer, "T")
            assert len(found) == 2
            store, handle = bench.broker.store, found[0].handle
            before = store.log.max_offset
            again = BatchAck(
                found[0].group,
                "T",
                handle.kind,
                handle.start_offset,
                handle.queue_id,
                handle.revive_queue,
                handle.pop_time,
                handle.invisible_time,
                (0, 1),
            )
            body = BatchAckMessageRequestBody(BROKER_NAME, (again,) * 1_000).encode()
            assert (await bench.client.call(RequestCode.BATCH_ACK_MESSAGE, body=body)).code == 0
            assert store.log.max_offset - before < 2_000
            assert open_checks(bench) == 0

    run(scenario)


@pytest.mark.abuse("A14")
def test_entries_of_a_queue_are_shown_without_reading_their_messages(tmp_path: Path) -> None:
    """The loop copied and checked each record as a whole: a request for 1024 entries may mean 4 GiB."""

    async def effort(bench: Bench, topic: str, size: int) -> float:
        for number in range(128):
            assert (await bench.client.send(topic, bytes(size), UNIQ_KEY=f"U{number}")).code == 0
        fields = {"topic": topic, "queueId": "0", "index": "0", "count": "1024"}
        least = math.inf  # of several: threads of the store work beside it
        for _ in range(5):
            started = time.process_time()
            answer = await bench.client.call(RequestCode.QUERY_CONSUME_QUEUE, fields)
            least = min(least, time.process_time() - started)
            assert answer.code == 0
            assert [one["msg"] for one in json.loads(answer.body)["queueData"]] == [
                f"U{n}" for n in range(128)
            ]
        return least

    async def scenario() -> None:
        async with running(tmp_path, store=replace(BIG, max_message_size_bytes=1 << 20)) as bench:
            small = await effort(bench, "Small", 10)
            assert await effort(bench, "Large", 500_000) < 3 * small

    run(scenario)


@pytest.mark.abuse("A14")
@pytest.mark.parametrize("kind", ["pull", "pop"])
def test_tags_of_requests_that_wait_count_as_the_memory_that_they_take(tmp_path: Path, kind: str) -> None:
    """16 KB of tags are half a megabyte of strings and hashes: what counted as 64 MiB were 1.9 GiB."""
    expression = "||".join(f"{number:03x}" for number in range(3_200))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = SubscriptionData.parse("T", expression)
        each = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(kept.tags_set) == 3_200

    async def scenario() -> None:
        async with running(tmp_path, long_poll_bytes_max=4 << 20) as bench:
            assert (await bench.client.send()).code == 0
            wait = {"pull": wait_for_pull, "pop": wait_for_pop}[kind]
            waiting = [asyncio.ensure_future(wait(bench, expression)) for _ in range(24)]
            # They were all held. None is over by itself before this has waited in vain.
            await until(lambda: sum(not one.done() for one in waiting) * each <= 4 << 20, "room", 30)
            assert not all(one.done() for one in waiting)
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    run(scenario)


async def wait_for_pull(bench: Bench, expression: str) -> Command:
    return await bench.client.pull(offset=1, wait_ms=60_000, subscription=expression, expressionType="TAG")


async def wait_for_pop(bench: Bench, expression: str) -> Command:
    return await pop(bench.client, "T", queue=0, exp=expression, wait_ms=60_000, bornTime=0)


@pytest.mark.abuse("A14")
def test_changes_of_a_group_in_a_moment_are_told_to_its_members_together(tmp_path: Path) -> None:
    """One heartbeat may name a group 256 times, with other topics each time; a notice went to each member for each."""
    members, notices = 20, 0

    def told(_: object, command: Command) -> None:
        nonlocal notices
        notices += 1

    def beat(number: int, topics: list[str]) -> bytes:
        consumers = tuple(
            ConsumerData("g", subscriptions=(SubscriptionData(topic, sub_version=1),)) for topic in topics
        )
        return HeartbeatData(f"client@{number}", consumers=consumers).encode()

    async def scenario() -> None:
        nonlocal notices
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            clients = [bench.connect({RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: told}) for _ in range(members)]
            for number, client in enumerate(clients):
                assert (await client.call(RequestCode.HEART_BEAT, body=beat(number, ["A"]))).code == 0
            # Whatever is left to be told of that is told now.
            clock.advance(NOTICE_SPAN_MS)
            bench.broker.consumers.tick()
            clock.advance(NOTICE_SPAN_MS)
            for client in clients:
                assert (await client.call(30, QUESTION)).code == 0
            notices = 0
            assert (await clients[0].call(RequestCode.HEART_BEAT, body=beat(0, ["A", "B"] * 128))).code == 0
            for client in clients:  # what was sent to it before has been handled with this answer
                assert (await client.call(30, QUESTION)).code == 0
            assert notices <= NOTICES_MAX * members
            at_once = notices
            clock.advance(NOTICE_SPAN_MS)
            await until(lambda: notices == at_once + members)  # and of the last change

    run(scenario)


@pytest.mark.abuse("A14")
def test_question_to_all_members_of_a_group_counts_as_calls_to_clients(tmp_path: Path) -> None:
    """A member with 100 connections that never answer had the broker wait for 100 answers, for each request of it."""
    asked = 0

    def silent(_: object, command: Command) -> None:
        nonlocal asked
        asked += 1

    async def scenario() -> None:
        async with running(tmp_path, relays_max=20) as bench:
            for number in range(9):
                member = bench.connect({RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: silent})
                assert (await member.heartbeat("g", client_id=f"c@{number}")).code == 0
            fields = {"topic": "T", "group": "g"}
            questions = [
                asyncio.ensure_future(
                    bench.client.call(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields)
                )
                for _ in range(10)
            ]
            await until(lambda: sum(one.done() for one in questions) >= 8)
            assert {one.result().code for one in questions if one.done()} == {ResponseCode.SYSTEM_BUSY}
            assert asked <= 18
            for one in questions:
                one.cancel()
            await asyncio.gather(*questions, return_exceptions=True)

    run(scenario)


@pytest.mark.abuse("A14")
def test_ends_of_transactions_that_are_over_leave_threads_to_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is looked up in index and log. A producer that repeated its end a thousand times took all threads of the
    loop, and the journal of the tables was not written."""
    gate, busy = threading.Semaphore(0), 0

    def slow(ends: TransactionEnds, half: object) -> bool:
        nonlocal busy
        busy += 1
        return gate.acquire(timeout=30)

    async def scenario() -> None:
        async with running(tmp_path) as bench:
            half = await prepare(bench.client, "U1")
            assert (await end(bench.client, half, COMMIT)).code == 0
            await until(lambda: bench.broker.store.max_offset(HALF_DONE_TOPIC, 0) == 1)
            monkeypatch.setattr(TransactionEnds, "find_committed", slow)
            again = [asyncio.ensure_future(end(bench.client, half, COMMIT)) for _ in range(40)]
            await until(lambda: busy >= WORKERS)
            # A change that has to be in the journal before it is answered.
            await bench.connect().heartbeat("another")
            await asyncio.sleep(0.2)
            assert busy == WORKERS
            gate.release(40)
            assert {answer.code for answer in await asyncio.gather(*again)} == {0}

    run(scenario)


@pytest.mark.abuse("A14")
def test_coordinator_keeps_only_so_much_of_what_clients_report() -> None:
    """150 members of one group with 20,000 made-up queues each took 1.4 GiB, and each round more than the two seconds
    of a master's lease; ids of producers could be megabytes long."""

    def report(
        client: str, *queues: MessageQueue, kind: ClientKind = ClientKind.CONSUMER, sequence: int = 1
    ) -> bytes:
        return ClientBeatBody(client, "g", kind, topics=("T",), queues=queues, sequence=sequence).encode()

    async def scenario() -> None:
        async with coordinator(parts=(BalancingPart,), reported_queues_max=50) as server, peer() as client:
            await leading(server)

            async def code(body: bytes) -> int:
                return (await client.call(server.address, Command(RequestCode.CLIENT_BEAT, {}, body))).code

            queues = [MessageQueue("T", "b", number) for number in range(60)]
            assert await code(report("a", *queues[:30])) == 0
            assert await code(report("b", *queues[:30])) == ResponseCode.INVALID_PARAMETER
            assert await code(report("b", *queues[30:40])) == 0
            assert await code(report("b", *queues[30:60], sequence=2)) == ResponseCode.INVALID_PARAMETER
            long = MessageQueue("T", "b" * 100_000, 0)
            assert await code(report("c", long)) == ResponseCode.INVALID_PARAMETER
            for size, expected in ((100, 0), (100_000, ResponseCode.INVALID_PARAMETER)):
                assert await code(report("p" * size, kind=ClientKind.PRODUCER)) == expected

    run(scenario)


@asynccontextmanager
async def peer() -> AsyncIterator[RemotingClient]:
    client = RemotingClient(runtime=Runtime.system())
    try:
        yield client
    finally:
        await client.close()


@pytest.mark.abuse("A14")
def test_search_by_key_keeps_no_more_messages_than_it_answers(tmp_path: Path) -> None:
    """64 messages of 4 MiB were all in memory before the first 8 MiB of them were answered, for each search."""
    size, count = 900_000, 60

    async def scenario() -> None:
        async with running(tmp_path, store=replace(BIG, max_message_size_bytes=1 << 20)) as bench:
            for _ in range(count):
                assert (await bench.client.send("T", bytes(size), KEYS="k")).code == 0
            search = {
                "topic": "T",
                "key": "k",
                "maxNum": "64",
                "beginTimestamp": "0",
                "endTimestamp": str(2**62),
            }
            tracemalloc.start()
            try:
                answer = await bench.client.call(RequestCode.QUERY_MESSAGE, search)
                _, most = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert answer.code == 0
            # The client of this test, in the same process, has the answer as well, and joins its pieces.
            assert len(answer.body) < most < 5 * len(answer.body) < count * size

    run(scenario)


@pytest.mark.abuse("A14")
def test_search_through_a_long_chain_of_keys_lets_other_threads_work() -> None:
    """Messages with the same key 16,000 times each make a chain of millions of entries; a search for a time before
    them walks all of it, and held the interpreter, and with it the event loop, for half a second for each file."""
    slots, count = 1, 3_000_000
    entries = array("i", bytes(ENTRY_SIZE * count))
    entries[3::5] = array("i", [1_000]) * count
    entries[4::5] = array("i", range(-1, count - 1))
    entries.byteswap()
    file = MappedBytes(bytes(INDEX_HEADER_SIZE) + (count - 1).to_bytes(4, "big") + entries.tobytes())
    longest, is_over = 0.0, False

    def tick() -> None:
        nonlocal longest
        last = time.perf_counter()
        while not is_over:
            now = time.perf_counter()
            longest, last = max(longest, now - last), now

    ticking = threading.Thread(target=tick)
    ticking.start()
    shares = []
    try:
        for _ in range(5):
            longest, started = 0.0, time.perf_counter()
            assert find_key(file, None, slots, count, 0, 0, 0, 500_000, 256) == []
            shares.append(longest / (time.perf_counter() - started))
    finally:
        is_over = True
        ticking.join()
    # Of the time of a search: it was all of it.
    assert min(shares) < 0.5


@pytest.mark.abuse("A16")
@pytest.mark.parametrize("tries", [2**31 - 1, -(2**31), -5])
def test_message_that_says_any_number_of_tries_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    """One more than the largest number fits no record: the error ended what POP gives back, and what was due with it
    never came again, whoever had popped it. Negative ones were delay levels below the first, which were refused."""

    async def scenario() -> None:
        async with running(tmp_path, pop_invisible_min_ms=1, pop_from_retry_percent=100) as bench:
            sent = await bench.client.call(RequestCode.SEND_MESSAGE_V2, send_fields("Odd", j=tries), b"odd")
            assert sent.code == 0
            assert (await bench.client.send("T", b"victim")).code == 0
            assert bench.broker.pop is not None
            service = bench.broker.pop.service
            due = service.state.due
            # Both are due in one turn, the odd one first.
            monkeypatch.setattr(
                service.state, "due", lambda *now: due(*now) if len(service.state.open) == 2 else []
            )
            assert [one.message.body for one in await take(bench.client, "Odd", invisible_ms=1)] == [b"odd"]
            assert [
                one.message.body for one in await take(bench.client, "T", invisible_ms=1, group="g2")
            ] == [b"victim"]
            await until(lambda: not service.state.open)
            [again] = await take(bench.client, "T", group="g2")
            assert (again.message.body, again.tries) == (b"victim", 1)
            fields = {"group": "g", "offset": str(int(sent.fields["msgId"][-16:], 16)), "delayLevel": "0"}
            assert (await bench.client.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0

    run(scenario)


@pytest.mark.abuse("A3")
def test_topics_and_groups_are_not_nested_deeper_than_their_tables_can_be_read(tmp_path: Path) -> None:
    """Members that no version has are kept. Nested almost as deep as a request may be, they were too deep in the
    file: the broker did not start any more, its replicas and name servers refused what it told."""
    deep, flat = "[" * 28 + "]" * 28, "[[1]]"
    policy = '"groupRetryPolicy":{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[1],"x":%s}}'

    async def scenario() -> None:
        async with running(tmp_path) as bench:

            async def code(request: int, body: str) -> int:
                return (await bench.client.call(request, body=body.encode())).code

            for extra, expected in ((deep, ResponseCode.INVALID_PARAMETER), (flat, ResponseCode.SUCCESS)):
                group, topic = f'{{"groupName":"g","x":{extra}}}', f'{{"topicName":"U","x":{extra}}}'
                nested = f'{{"groupName":"g",{policy % extra}}}'
                for request, body in (
                    (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group),
                    (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, nested),
                    (
                        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
                        f'{{"groupConfigList":[{group}]}}',
                    ),
                    (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, f'{{"topicConfigList":[{topic}]}}'),
                ):
                    assert await code(request, body) == expected, body
        async with running(tmp_path) as bench:
            assert bench.broker.groups.find("g") is not None
            assert bench.broker.topics.get("U") is not None

    run(scenario)
