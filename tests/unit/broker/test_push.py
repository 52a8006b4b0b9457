"""A broker that pushes, over real sockets: the seed's worked example, and clients that answer late, never, in part or
not any more."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from penstock.broker.push_tasks import ClientState, TaskState
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command, encode_frame
from tests.support.pushing import (
    GROUP,
    QUICK,
    Pushed,
    committed,
    fill,
    known,
    listing,
    resume,
    state_of,
    task_of,
)
from tests.support.running_broker import run, running
from tests.waiting import until


@pytest.mark.feature("push", "fifth-seed")
@pytest.mark.seed("S4-94", "S4-95", "S4-96", "S4-97", "S4-98", "S4-99", "S4-100")
def test_the_worked_example(tmp_path: Path) -> None:
    """consumer-A subscribes to topic `order`, partition p-001, from offset 1024. Partition p-NNN is queue NNN."""

    async def scenario() -> None:
        async with running(tmp_path, push_ping_interval_ms=200) as bench:
            for number in range(1_030):
                await bench.client.send("order", b"%d" % number, 1)
            one, two = Pushed(bench, "consumer-A"), Pushed(bench, "consumer-B")
            answer = await one.begin(1, 1_024, topic="order")
            assert (answer.code, answer.fields["nextBeginOffset"]) == (0, "1024")
            await until(lambda: one.bodies == [b"%d" % number for number in range(1_024, 1_030)])
            await until(lambda: bench.broker.offsets.query(GROUP, "order", 1) == 1_030)
            # The partition is taken: point to point, it has one consumer.
            answer = await two.begin(1, 1_024, topic="order")
            assert answer.code == ResponseCode.NO_PERMISSION
            assert "taken for group g by consumer-A, which is alive" in (answer.remark or "")
            # Another group may have it, and gets everything.
            assert (await two.subscribe(1, 1_024, "order", consumerGroup="others")).code == 0
            await until(lambda: len(two.bodies) == 6)
            # The heartbeat keeps it alive.
            await until(lambda: one.pings >= 3)
            assert state_of(bench, "consumer-A") is ClientState.ALIVE
            await bench.client.send("order", b"new", 1)
            await until(lambda: one.bodies[-1] == b"new")

    run(scenario)


@pytest.mark.seed("S4-80", "S4-81", "S4-82", "S4-83")
def test_subscriptions_that_are_not_valid(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench, 1)
            one = Pushed(bench)
            answer = await one.subscribe()
            assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
            assert "register it first" in (answer.remark or "")
            await one.register()
            for code, wrong in (
                (ResponseCode.TOPIC_NOT_EXIST, {"topic": "nowhere"}),
                (ResponseCode.INVALID_PARAMETER, {"queue": 99}),
                (ResponseCode.INVALID_PARAMETER, {"offset": -2}),
                (ResponseCode.INVALID_PARAMETER, {"windowMessages": -1}),
                (ResponseCode.INVALID_PARAMETER, {"windowBytes": -1}),
                (ResponseCode.SUBSCRIPTION_PARSE_FAILED, {"expressionType": "SQL92", "subscription": "a >"}),
                # Without an expression of its own: nobody has said in a heartbeat what the group wants.
                (ResponseCode.SUBSCRIPTION_NOT_EXIST, {"sysFlag": 0}),
            ):
                answer = await one.subscribe(**wrong)  # type: ignore[arg-type]
                assert answer.code == code, wrong
                assert answer.remark
            assert not bench.broker.push.state.tasks
            topic = {"topic": "T", "readQueueNums": "4", "writeQueueNums": "4", "perm": "2"}
            more = {
                "defaultTopic": "TBW102",
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
            }
            assert (await bench.client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic | more)).code == 0
            assert (await one.subscribe()).code == ResponseCode.NO_PERMISSION
            answer = await Pushed(bench, "x").client.call(RequestCode.PUSH_REGISTER, {"clientID": "\n"})
            assert answer.code == ResponseCode.INVALID_PARAMETER
            answer = await one.client.call(RequestCode.PUSH_REGISTER, {"clientID": "another"})
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert "one connection is one client" in (answer.remark or "")

    run(scenario)


@pytest.mark.feature("retries", "fifth-seed")
@pytest.mark.seed("S4-87", "S4-88", "S4-89", "S4-90", "S4-91", "S4-92")
@pytest.mark.invariant("I1")
def test_a_client_that_does_not_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, **QUICK) as bench:
            bodies = await fill(bench, 10)
            one = Pushed(bench)
            one.answers = False
            await one.begin()
            state = bench.broker.push.state
            await until(lambda: task_of(bench).state is TaskState.TIMEOUT)
            assert state_of(bench) is ClientState.TIMEOUT
            assert list(state.timeouts) == [task_of(bench)]
            await until(lambda: task_of(bench).state is TaskState.PARKED)
            # Sent twice, from the same offset; then it waits, and keeps it.
            assert one.bodies == bodies * 2
            assert list(state.dead_letters) == [task_of(bench)]
            assert task_of(bench).next_offset == 0
            assert committed(bench) == -1
            assert state_of(bench) is ClientState.ALIVE
            found = await listing(bench.client)
            assert (found.timeout_queue, found.dead_letter_queue) == (0, 1)
            assert found.clients[0].subscriptions[0].unanswered == 10
            await fill(bench, 5, 10)
            one.answers, one.bodies = True, []
            [resumed] = await one.resume()
            assert (resumed.was, resumed.goes_on, resumed.offset) == ("parked", True, 0)
            await until(lambda: len(one.bodies) == 15)
            assert one.bodies == [*bodies, *(b"%d" % number for number in range(10, 15))]
            await until(lambda: committed(bench) == 15)
            [again] = await one.resume()
            assert (again.was, again.goes_on) == ("sending", True)

    run(scenario)


def test_a_late_answer_counts(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, **QUICK) as bench:
            bodies = await fill(bench, 3)
            one = Pushed(bench)
            one.answers = False
            await one.begin()
            await until(lambda: task_of(bench).state is TaskState.TIMEOUT)
            one.answer_kept()
            one.answers = True
            await until(lambda: task_of(bench).state is TaskState.SENDING)
            assert state_of(bench) is ClientState.ALIVE
            assert committed(bench) == 3
            await fill(bench, 1, 3)
            await until(lambda: one.bodies[-1] == b"3")
            # What came twice came because the first answer was late; nothing else did.
            assert [body for body in one.bodies if body != b"3"] in (bodies, bodies * 2)

    run(scenario)


def test_answers_in_part_errors_and_nonsense(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, **QUICK) as bench:
            bodies = await fill(bench, 6)
            one = Pushed(bench)
            one.answers = False
            await one.begin()
            await until(lambda: len(one.kept) == 1)
            one.answer_kept(nextOffset=4, commitOffset=2)
            one.answers = True
            await until(lambda: committed(bench) == 6)
            assert one.ranges == [(0, 6), (4, 6)]
            assert one.bodies == [*bodies, *bodies[4:]]
            # Nothing taken, or no room: the broker waits to be told.
            one.hold = True
            await fill(bench, 1, 6)
            await until(lambda: task_of(bench).state is TaskState.HELD)
            await fill(bench, 1, 7)
            assert one.bodies[-1] == b"6"
            one.hold = False
            assert [task.was for task in await one.resume(topic="T", queueId="0")] == ["held"]
            await until(lambda: one.bodies[-1] == b"7")
            # More than was sent is what was sent, and commits nothing.
            one.answers = False
            await fill(bench, 1, 8)
            await until(lambda: len(one.kept) == 1)
            one.answer_kept(nextOffset=10**15, commitOffset=10**15)
            await until(lambda: task_of(bench).taken == 9)
            assert committed(bench) == 8
            # What is no answer is as good as none.
            await fill(bench, 1, 9)
            for _ in range(2):
                await until(lambda: len(one.kept) == 1)
                one.answer_kept(nextOffset="many")
            await until(lambda: task_of(bench).state is TaskState.PARKED)

    run(scenario)


@pytest.mark.feature("heartbeats", "fifth-seed")
@pytest.mark.seed("S4-84", "S4-85", "S4-86")
def test_pings_find_a_client_that_is_gone_and_its_queue_is_free(tmp_path: Path) -> None:
    async def scenario() -> None:
        quick = {"push_ping_interval_ms": 150, "push_ping_misses": 2, "push_answer_timeout_ms": 60_000}
        async with running(tmp_path, **quick) as bench:
            await fill(bench, 2)
            one, two = Pushed(bench), Pushed(bench, "client@2")
            await one.begin()
            await until(lambda: committed(bench) == 2)
            one.pongs = False
            await until(lambda: state_of(bench) is ClientState.TIMEOUT)
            await until(lambda: state_of(bench) is ClientState.DEAD)
            assert task_of(bench).state is TaskState.PARKED
            [result] = await resume(bench.client)
            assert (result.goes_on, result.reason) == (False, "the client is dead: it has to come back first")
            await fill(bench, 1, 2)
            assert one.bodies == [b"0", b"1"]
            # It answers pings again: alive, and told that something is parked; it says resume.
            one.pongs = True
            await until(lambda: state_of(bench) is ClientState.ALIVE and one.parked == 1)
            assert task_of(bench).state is TaskState.PARKED
            assert (await one.resume())[0].goes_on
            await until(lambda: one.bodies == [b"0", b"1", b"2"])
            # Dead again; who says resume itself lives, whatever became of its pongs.
            one.pongs = False
            await until(lambda: state_of(bench) is ClientState.DEAD)
            assert (await one.resume())[0].goes_on
            assert state_of(bench) is ClientState.ALIVE
            # And again; now another takes its queue.
            await until(lambda: state_of(bench) is ClientState.DEAD)
            assert (await two.begin()).code == 0
            await until(lambda: len(one.ended) == 1)
            assert one.ended[0][:2] == (ResponseCode.NO_PERMISSION, "the queue was taken over by client@2")
            await fill(bench, 1, 3)
            await until(lambda: two.bodies == [b"3"])

    run(scenario)


def test_a_queue_that_nobody_wants_any_more_is_free_for_others(tmp_path: Path) -> None:
    """A client comes back and has given a queue up meanwhile: it answers what is sent of that queue with 206."""

    async def scenario() -> None:
        async with running(tmp_path, push_ping_interval_ms=60_000, push_answer_timeout_ms=60_000) as bench:
            await fill(bench, 2)
            one, two = Pushed(bench), Pushed(bench, "client@2")
            await one.begin()
            assert (await one.subscribe(queue=1)).code == 0
            await until(lambda: committed(bench) == 2)
            one.answers = False
            await fill(bench, 1, 2)
            await until(lambda: one.kept)
            [(connection, command)] = one.kept
            connection.answer(command, command.answer(ResponseCode.CONSUMER_NOT_ONLINE, "nobody here"))
            tasks = bench.broker.push.state.tasks
            await until(lambda: [place.queue_id for place in tasks] == [1])
            assert (await two.begin()).code == 0
            await until(lambda: two.bodies == [b"2"])
            # Its other queue is still its own.
            one.answers = True
            await fill(bench, 1, 3, queue=1)
            await until(lambda: one.bodies[-1] == b"3")

    run(scenario)


@pytest.mark.feature("push", "fifth-seed")
@pytest.mark.seed("S4-45", "S4-46", "S4-47", "S4-48")
def test_closing_removes_a_client_from_every_subscription(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench, 1)
            one, two = Pushed(bench), Pushed(bench, "client@2")
            await one.register()
            for queue in range(4):
                assert (await one.subscribe(queue)).code == 0
            await two.begin(consumerGroup="others")
            found = await listing(bench.client)
            assert {client.name: len(client.subscriptions) for client in found.clients} == {
                "client@1": 4,
                "client@2": 1,
            }
            assert [client.name for client in (await listing(bench.client, GROUP)).clients] == ["client@1"]
            client = known(bench)
            assert (await one.client.call(RequestCode.PUSH_CLOSE)).code == 0
            assert client is not None
            assert (client.state, client.tasks) == (ClientState.CLOSED, {})
            state = bench.broker.push.state
            assert [task.place.group for task in state.tasks.values()] == ["others"]
            assert list(state.clients) == ["client@2"]
            # It is over for good: over this connection it has to register again.
            assert (await one.subscribe()).code == ResponseCode.CONSUMER_NOT_ONLINE
            assert (await one.begin()).code == 0
            assert (await one.unsubscribe()).code == 0
            assert (await one.unsubscribe()).code == ResponseCode.SUBSCRIPTION_NOT_EXIST

    run(scenario)


@pytest.mark.feature("push", "fifth-seed")
@pytest.mark.fault("F3")
@pytest.mark.seed("S4-39", "S4-91")
def test_a_client_whose_connection_went_comes_back_and_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench, 4)
            one = Pushed(bench)
            one.answers = False
            await one.begin()
            await until(lambda: len(one.kept) == 1)
            one.answer_kept(commitOffset=2)
            await until(lambda: committed(bench) == 2)
            await one.client.close()
            await until(lambda: state_of(bench) is ClientState.DEAD)
            assert task_of(bench).state is TaskState.PARKED
            await fill(bench, 1, 4)
            # The same client over another connection: it registers, and what was parked goes on by itself, from what
            # was done: what it had only taken may be lost.
            back = Pushed(bench)
            answer = await back.register()
            assert answer.fields["resumed"] == "1"
            await until(lambda: back.bodies == [b"2", b"3", b"4"])
            await until(lambda: committed(bench) == 5)
            assert state_of(bench) is ClientState.ALIVE

    run(scenario)


def test_a_name_is_called_over_its_newest_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench, 2)
            one, again = Pushed(bench), Pushed(bench)
            await one.begin()
            await until(lambda: committed(bench) == 2)
            assert (await again.register()).fields["resumed"] == "1"
            await until(lambda: one.ended)
            assert one.ended[0][:2] == (
                ResponseCode.NO_PERMISSION,
                "the client registered over another connection",
            )
            assert (await one.subscribe()).code == ResponseCode.CONSUMER_NOT_ONLINE
            await fill(bench, 1, 2)
            await until(lambda: again.bodies == [b"2"])
            # That the old one goes is no news any more.
            await one.client.close()
            await fill(bench, 1, 3)
            await until(lambda: again.bodies == [b"2", b"3"])
            assert state_of(bench) is ClientState.ALIVE

    run(scenario)


@pytest.mark.abuse("A15")
def test_a_client_that_stops_reading_holds_up_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, push_window_bytes=1 << 30) as bench:
            big = b"x" * 60_000
            for _ in range(300):
                await bench.client.send(body=big)
            await bench.client.send(body=b"small", queue=1)
            silent = Pushed(bench, "silent")
            fields = await _fields_of(silent)
            host, port = bench.client.address.rsplit(":", 1)
            sleeping = socket.create_connection((host, int(port)))
            try:
                sleeping.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                for code, given in fields:
                    sleeping.sendall(encode_frame(Command(code, given, opaque=7)))
                await until(lambda: known(bench, "sleeping") is not None)
                await until(lambda: bench.broker.push.clogged)
                [link] = [one for one in bench.broker.connections if one.paused_since_ms is not None]
                # It has been sent what its buffers hold, not the window; others get theirs.
                assert link.unread_bytes < 16 << 20
                other = Pushed(bench, "other")
                assert (await other.begin(1)).code == 0
                await until(lambda: other.bodies == [b"small"])
            finally:
                sleeping.close()
            await until(lambda: state_of(bench, "sleeping") is ClientState.DEAD)

    run(scenario)


async def _fields_of(pushed: Pushed) -> list[tuple[int, dict[str, str]]]:
    """What a client sends to be pushed queue 0, without sending it."""
    sent: list[tuple[int, dict[str, str]]] = []

    async def call(code: int, fields: dict[str, str] | None = None, **more: object) -> Command:
        sent.append((code, fields or {}))
        return Command(0)

    pushed.name = "sleeping"
    pushed.client.call = call  # type: ignore[method-assign, assignment]
    await pushed.begin()
    return sent


def test_what_ends_a_pull_ends_a_subscription(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench, 5)
            one = Pushed(bench)
            await one.begin()
            await until(lambda: committed(bench) == 5)
            # An operator sets the group back.
            bench.broker.offsets.assign_reset(GROUP, "T", 0, 2)
            await until(lambda: len(one.ended) == 1)
            assert one.ended[0][0] == ResponseCode.PULL_OFFSET_MOVED
            assert one.ended[0][2] == 2
            assert (await one.subscribe(0, 2)).code == 0
            await until(lambda: one.bodies[5:] == [b"2", b"3", b"4"])
            # Behind the end of the queue: it goes on where the queue does.
            assert (await one.subscribe(0, 77)).code == 0
            await until(lambda: len(one.ended) == 2)
            assert (one.ended[1][0], one.ended[1][2]) == (ResponseCode.PULL_OFFSET_MOVED, 5)
            # The group may not consume any more.
            assert (await one.subscribe(0, 5)).code == 0
            barred = b'{"groupName":"g","consumeEnable":false}'
            answer = await bench.client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=barred)
            assert answer.code == 0
            await fill(bench, 1, 5)
            await until(lambda: len(one.ended) == 3)
            assert one.ended[2][0] == ResponseCode.NO_PERMISSION

    run(scenario)


def test_filters_pass_over_what_nobody_wants(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            for number in range(100):
                await bench.client.send(
                    body=b"%d" % number, TAGS="a" if number % 25 == 0 else "b", n=str(number)
                )
            one, two = Pushed(bench), Pushed(bench, "client@2")
            await one.begin(subscription="a")
            await until(lambda: committed(bench) == 100)
            assert one.bodies == [b"0", b"25", b"50", b"75"]
            more = {"consumerGroup": "sql", "subscription": "n > 97", "expressionType": "SQL92"}
            await two.begin(**more)
            await until(lambda: two.bodies == [b"98", b"99"])
            await until(lambda: bench.broker.offsets.query("sql", "T", 0) == 100)
            # Nothing of it is wanted: told once there is no more, with no records.
            await bench.client.send(body=b"no", TAGS="b", n="1")
            await until(lambda: committed(bench) == 101)
            assert one.bodies[4:] == []

    run(scenario)


def test_the_window_is_never_exceeded(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, push_answer_timeout_ms=60_000) as bench:
            await fill(bench, 50)
            one = Pushed(bench)
            one.answers = False
            answer = await one.begin(windowMessages=7)
            assert answer.fields["windowMessages"] == "7"
            await until(lambda: len(one.bodies) == 7)
            await bench.client.send("other")
            assert len(one.bodies) == task_of(bench).messages_out == 7
            while len(one.bodies) < 50:
                assert task_of(bench).messages_out <= 7
                seen = len(one.bodies)
                one.answer_kept()
                await until(lambda seen=seen: len(one.bodies) > seen)
            assert one.bodies == [b"%d" % number for number in range(50)]
            # In bytes: a message larger than the window goes alone.
            two = Pushed(bench, "client@2")
            two.answers = False
            for _ in range(3):
                await bench.client.send(body=b"y" * 500, queue=2)
            await two.begin(2, windowBytes=100)
            await until(lambda: len(two.bodies) == 1)
            await bench.client.send("other")
            assert len(two.bodies) == 1
            two.answers = True
            two.answer_kept()
            await until(lambda: len(two.bodies) == 3)

    run(scenario)


def test_a_broker_that_is_not_the_master_pushes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench, 1)
            one = Pushed(bench)
            await one.begin()
            await until(lambda: committed(bench) == 1)
            bench.broker.push.stop()
            await until(lambda: one.ended)
            assert one.ended[0][0] == ResponseCode.SERVICE_NOT_AVAILABLE
            answer = await one.register()
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "which the route names" in (answer.remark or "")
            await fill(bench, 1, 1)
            bench.broker.push.start()
            assert (await one.begin()).code == 0
            await until(lambda: one.bodies == [b"0", b"1"])

    run(scenario)


def test_leased_queues_are_pushed_to_who_holds_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, partition_lease_ms=60_000) as bench:
            await fill(bench, 1)
            leases = bench.broker.leases
            leases.begin(())
            queue = MessageQueue("T", bench.broker.options.broker_name, 0)
            one, two = Pushed(bench), Pushed(bench, "client@2")
            await one.register()
            await two.register()
            assert leases.claim(GROUP, one.name, [queue]).granted == (queue,)
            answer = await two.subscribe()
            assert answer.code == ResponseCode.NO_PERMISSION
            assert "leased to client@1" in (answer.remark or "")
            assert (await one.subscribe(penstockHolder=one.name)).code == 0
            await until(lambda: committed(bench) == 1)
            # The lease goes to another: what is left of the first ends, alive as it is.
            leases.release(GROUP, one.name, [queue])
            assert leases.claim(GROUP, two.name, [queue]).granted == (queue,)
            assert (await two.subscribe(penstockHolder=two.name)).code == 0
            await until(lambda: one.ended)
            assert one.ended[0][:2] == (ResponseCode.NO_PERMISSION, "the queue is leased to client@2")
            await fill(bench, 1, 1)
            await until(lambda: two.bodies == [b"1"])
            assert one.bodies == [b"0"]

    run(scenario)


def test_a_client_that_stays_dead_is_forgotten_and_hung_up_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        quick = {"push_ping_interval_ms": 100, "push_ping_misses": 1, "push_dead_keep_ms": 300}
        async with running(tmp_path, **quick) as bench:
            await fill(bench, 1)
            one = Pushed(bench)
            await one.begin()
            await until(lambda: committed(bench) == 1)
            client = known(bench)
            assert client is not None
            one.pongs = False
            await until(lambda: client.state is ClientState.DEAD)
            await until(lambda: client.state is ClientState.CLOSED)
            assert (known(bench), bench.broker.push.state.tasks) == (None, {})
            await until(lambda: client.link is None)
            assert client.state is ClientState.CLOSED
            # It comes back as if for the first time.
            back = Pushed(bench)
            assert (await back.begin()).code == 0
            await fill(bench, 1, 1)
            await until(lambda: back.bodies == [b"1"])

    run(scenario)


@pytest.mark.invariant("I5")
def test_what_nobody_may_see_yet_is_not_pushed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench, 1)
            one = Pushed(bench)
            await one.begin()
            await until(lambda: committed(bench) == 1)
            store = bench.broker.store
            store.hold()  # as a publication does until it is whole
            try:
                await fill(bench, 3, 1)
                await one.resume()
                await bench.client.send("other")
                assert one.bodies == [b"0"]
            finally:
                store.release()
            await until(lambda: one.bodies == [b"0", b"1", b"2", b"3"])

    run(scenario)
