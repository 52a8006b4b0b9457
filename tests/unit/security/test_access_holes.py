"""What a user with a valid account could do to others, one attack for each hole that was found."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.broker.offsets import BROKERS_OWN
from penstock.coordinator.balancing_part import BalancingPart
from penstock.errors import RequestError
from penstock.protocol.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from penstock.protocol.bodies.balance import ClientBeatBody, ClientKind
from penstock.protocol.codes import RequestCode as R
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import PullSysFlag
from penstock.remoting import Connection, ProcessorTable, RemotingClient
from penstock.runtime import Runtime
from penstock.security import AccessOptions, Credentials, NodeAccess, SigningHook
from penstock.security.policy import Action
from penstock.security.signatures import sign
from penstock.testing.clock import ManualClock
from penstock.testing.embedded import EmbeddedBroker
from tests.support.guarded import ADMIN_SECRET, SECRET, caller, run
from tests.unit.security.access_world import ADMIN, ALICE, ANOTHERS, BOB, OWN, world
from tests.unit.security.every_request import EVERY
from tests.waiting import until

NO_PERMISSION = int(ResponseCode.NO_PERMISSION)


def rocketmq_signed(keys: dict[str, str], command: Command) -> Command:
    """Without a stamp, as Java, Go and mqadmin sign."""
    command.fields["AccessKey"] = keys["access_key"]
    command.fields["Signature"] = sign(keys["secret_key"], command.fields, command.body)
    return command


def beat(client_id: str, *, group: str = "", topic: str = "") -> Command:
    consumers = ()
    if group:
        consumers = (ConsumerData(group, subscriptions=(SubscriptionData.parse(topic, "*"),)),)
    return Command(R.HEART_BEAT, body=HeartbeatData(client_id, (ProducerData("p"),), consumers).encode())


@pytest.mark.abuse("A10")
@pytest.mark.parametrize("code", [R.GET_CONSUMER_RUNNING_INFO, R.CONSUME_MESSAGE_DIRECTLY])
def test_an_operators_signature_is_not_passed_on_to_a_client(tmp_path: Path, code: R) -> None:
    """The broker passed the operator's request on to a consumer with everything it was signed with. The signature
    does not cover the request code: the consumer sent it back with another one, as the operator."""
    received: list[Command] = []

    def take(connection: Connection, command: Command) -> Command:
        received.append(command)
        return command.answer()

    async def test() -> None:
        async with world(tmp_path) as made:
            table = ProcessorTable()
            table.register(code, take)
            hook = SigningHook(Credentials(ALICE["access_key"], ALICE["secret_key"]), Runtime.system())
            attacker = RemotingClient(table, runtime=Runtime.system(), hook=hook)
            try:
                joined = await made.ask(attacker, "broker", beat("evil@1", group="billing", topic="orders"))
                assert joined.code == 0
                async with caller(None) as bare:
                    fields = {"consumerGroup": "billing", "clientId": "evil@1"}
                    extra = ("msgId",) if code == R.CONSUME_MESSAGE_DIRECTLY else ()
                    if extra:
                        fields["msgId"] = f"7F00000100002A9F{made.own.position:016X}"
                    asked = rocketmq_signed(ADMIN, Command(code, fields))
                    assert (await made.ask(bare, "broker", asked)).code == 0
                    (relayed,) = received
                    assert not {"AccessKey", "Signature", "SecurityToken"} & {*relayed.fields}
                    # And nothing of what Penstock's clients sign with.
                    again = Command(
                        code, {name: fields[name] for name in ("consumerGroup", "clientId", *extra)}
                    )
                    assert (await made.ask(made.clients["admin"], "broker", again)).code == 0
                    assert not [name for name in received[1].fields if name.startswith(("Penstock", "Sig"))]
                    # What the consumer has now is worth nothing at the broker.
                    stolen = {name: value for name, value in relayed.fields.items() if name in asked.fields}
                    for replayed in (R.GET_BROKER_CONFIG, R.AUTH_LIST_USERS):
                        answer = await made.ask(bare, "broker", Command(replayed, dict(stolen)))
                        assert (answer.code, bytes(answer.body)) == (NO_PERMISSION, b"")
            finally:
                await attacker.close()

    run(test)


@pytest.mark.abuse("A9")
def test_a_right_to_change_the_cluster_makes_nobody_an_admin(tmp_path: Path) -> None:
    """Who had `Update` on the cluster, or `*`, created an admin and was one."""
    users = f"""
[users.operator]
secret = "{SECRET}"
entries = [{{ resource = "Cluster:*", actions = ["All"] }}, {{ resource = "*", actions = ["All"] }}]

[users.admin]
secret = "{ADMIN_SECRET}"
roles = ["admin"]
"""
    codes = (R.AUTH_CREATE_USER, R.AUTH_UPDATE_USER, R.AUTH_DELETE_USER, R.AUTH_CREATE_ACL)
    others = (R.CONSUME_MESSAGE_DIRECTLY, R.AUTH_UPDATE_ACL, R.AUTH_DELETE_ACL)

    async def test() -> None:
        (tmp_path / "access.toml").write_text(users)
        access = NodeAccess.of(AccessOptions(enabled=True), tmp_path, Runtime.system())
        server = EmbeddedBroker(tmp_path / "data", access=access)
        await server.start()
        try:
            async with caller({"access_key": "operator", "secret_key": SECRET}) as operator:
                for code in (*codes, *others):
                    command = EVERY[code](OWN)
                    command.fields |= {"username": "operator", "subject": "User:operator"}
                    assert (await operator.call(server.broker_address, command)).code == NO_PERMISSION, code
                for code in (R.REGISTER_BROKER, R.UNREGISTER_BROKER):
                    answer = await operator.call(server.address, EVERY[code](OWN))
                    assert answer.code == NO_PERMISSION, code
                allowed = EVERY[R.UPDATE_BROKER_CONFIG](OWN)
                assert (await operator.call(server.broker_address, allowed)).code == 0
        finally:
            await server.stop()
        assert (tmp_path / "access.toml").read_text() == users

    run(test)


@pytest.mark.abuse("A9")
def test_producer_at_a_coordinator_is_its_users_alone(tmp_path: Path) -> None:
    """Any account, also one without entries, could close another's producer by its client id, or take its place."""

    def body(*topics: str) -> bytes:
        return ClientBeatBody("app@1", "p", ClientKind.PRODUCER, topics=topics).encode()

    async def test() -> None:
        async with world(tmp_path) as made:
            (part,) = made.coordinator.parts
            assert isinstance(part, BalancingPart)
            publishers = part.balancing.publishers
            beat = Command(R.CLIENT_BEAT, body=body("orders"))
            assert (await made.ask(made.clients["alice"], "coordinator", beat)).code == 0
            (known,) = publishers.of("orders")
            for name in ("bob", "carol", "admin"):
                for code, topics in (
                    (R.CLIENT_CLOSE, ()),
                    (R.CLIENT_BEAT, ()),
                    (R.CLIENT_CLOSE, ("public",)),
                ):
                    answer = await made.ask(
                        made.clients[name], "coordinator", Command(code, body=body(*topics))
                    )
                    assert answer.code == (NO_PERMISSION if name == "carol" else 0), (name, code)
                    assert publishers.of("orders") == [known], (name, code)
            closed = await made.ask(
                made.clients["alice"], "coordinator", Command(R.CLIENT_CLOSE, body=body())
            )
            assert closed.code == 0
            assert publishers.of("orders") == []

    run(test)


@pytest.mark.abuse("A9")
def test_there_is_no_sender_when_a_handler_has_returned(tmp_path: Path) -> None:
    """A handler that waits must not ask for the sender afterwards: another request was checked meanwhile."""
    (tmp_path / "access.toml").write_text(f"""
[users.admin]
secret = "{ADMIN_SECRET}"
roles = ["admin"]
""")
    guard = NodeAccess.of(AccessOptions(enabled=True), tmp_path, Runtime(clock=ManualClock())).guard
    assert guard is not None
    guard.check("::1", rocketmq_signed(ADMIN, Command(R.GET_BROKER_CONFIG)))
    assert guard.sender_name == "admin"
    guard.require_topic("public", Action.SUB)
    guard.handled()
    for ask in (
        lambda: guard.sender_name,
        guard.sender,
        lambda: guard.require_topic("public", Action.SUB),
        lambda: guard.standing(Command(R.GET_BROKER_CONFIG)),
    ):
        with pytest.raises(AssertionError, match="there is no sender"):
            ask()


@pytest.mark.abuse("A9")
def test_a_disabled_user_is_refused_from_a_trusted_address_too(tmp_path: Path) -> None:
    """A request with its name and no signature passed from there, and nothing was asked."""
    (tmp_path / "access.toml").write_text(f"""
[users.off]
secret = "{SECRET}"
enabled = false
trusted = ["10.2.0.1"]

[users.admin]
secret = "{ADMIN_SECRET}"
roles = ["admin"]
""")
    guard = NodeAccess.of(AccessOptions(enabled=True), tmp_path, Runtime(clock=ManualClock())).guard
    assert guard is not None
    with pytest.raises(RequestError) as refused:
        guard.check("10.2.0.1", Command(R.UPDATE_BROKER_CONFIG, {"AccessKey": "off"}))
    assert refused.value.code == NO_PERMISSION


@pytest.mark.abuse("A9")
def test_the_client_id_of_an_admins_producer_cannot_be_taken(tmp_path: Path) -> None:
    """Replies go to the newest connection of a client id: a user who said an admin's got the replies to it."""

    async def test() -> None:
        async with world(tmp_path) as made:
            broker = made.server.broker
            assert broker is not None
            assert (await made.ask(made.clients["admin"], "broker", beat("requester@1"))).code == 0
            victim = broker.producers.by_client_id("requester@1")
            assert victim is not None
            for name in ("alice", "bob"):
                assert (await made.ask(made.clients[name], "broker", beat("requester@1"))).code == 0
                assert broker.producers.by_client_id("requester@1") is victim

    run(test)


@pytest.mark.abuse("A9")
def test_taking_a_client_id_first_keeps_no_producer_from_being_asked_about_transactions(
    tmp_path: Path,
) -> None:
    """The user who said a client id first kept producers of other users with this id out; also an account that may
    publish nowhere, and which could fill the table of producer groups."""

    async def test() -> None:
        async with world(tmp_path) as made:
            broker = made.server.broker
            assert broker is not None
            producers = broker.producers
            for name in ("carol", "bob"):
                assert (await made.ask(made.clients[name], "broker", beat("app@1"))).code == 0
            assert len(producers.members("p")) == 1, "bob's: carol may publish nowhere"
            assert (await made.ask(made.clients["alice"], "broker", beat("app@1"))).code == 0
            asked = producers.pick("p", "orders")
            assert asked is not None
            assert asked.publisher is not None
            assert asked.publisher.user == "alice"
            # A reply names a client id only: it goes to the one who was there first.
            answering = producers.by_client_id("app@1")
            assert answering is not None
            assert answering.publisher is not None
            assert answering.publisher.user == "bob"
            await made.clients["bob"].close()
            await until(lambda: producers.by_client_id("app@1") is None, "bob has left")
            assert (await made.ask(made.clients["alice"], "broker", beat("app@1"))).code == 0
            assert producers.by_client_id("app@1") is asked

    run(test)


@pytest.mark.abuse("A9")
def test_position_of_a_message_tells_no_name_of_its_topic(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Any account could go through the positions of the log and learned the topic of each message."""
    caplog.set_level("WARNING", "penstock.audit")

    async def test() -> None:
        async with world(tmp_path) as made:
            for name in ("carol", "alice"):
                view = Command(R.VIEW_MESSAGE_BY_ID, {"offset": str(made.anothers.position)})
                answer = await made.ask(made.clients[name], "broker", view)
                assert answer.code == NO_PERMISSION
                assert "public" not in (answer.remark or "")
            assert "refused request 33" in caplog.text, "refusals of records are in the audit log, too"
            assert "Topic:public" in caplog.text
            back = Command(
                R.CONSUMER_SEND_MSG_BACK,
                {"offset": str(made.anothers.position), "group": "billing", "delayLevel": "0"},
            )
            answer = await made.ask(made.clients["alice"], "broker", back)
            assert answer.code == NO_PERMISSION
            assert "public" not in (answer.remark or "")

    run(test)


@pytest.mark.abuse("A19")
def test_progress_of_the_brokers_own_groups_cannot_be_deleted(tmp_path: Path) -> None:
    """Of the group that reads what was popped: who may delete groups reset how far the broker has read."""

    async def test() -> None:
        async with world(tmp_path) as made:
            broker = made.server.broker
            assert broker is not None
            for group in BROKERS_OWN:
                broker.offsets.restore(group, "orders", 0, 7)
                delete = Command(R.DELETE_SUBSCRIPTIONGROUP, {"groupName": group, "cleanOffset": "true"})
                for name in ("star", "admin"):
                    await made.ask(made.clients[name], "broker", delete)
                    assert broker.offsets.query(group, "orders", 0) == 7, (group, name)

    run(test)


@pytest.mark.abuse("A9")
def test_a_group_name_with_an_at_sign_closes_no_member_of_another_group(tmp_path: Path) -> None:
    """To the coordinator client `c@1` of group `readers` is `c@1@readers`, like client `c` of group `1@readers`."""
    alice_with_a_prefix = f"""
[users.alice]
secret = "{SECRET}"
entries = [{{ resource = "Group:1*", actions = ["Sub"] }}]

[users.bob]
secret = "{SECRET}"
entries = [{{ resource = "Topic:public", actions = ["Sub"] }}, {{ resource = "Group:readers", actions = ["Sub"] }}]

[users.admin]
secret = "{ADMIN_SECRET}"
roles = ["admin"]
"""

    async def test() -> None:
        async with world(tmp_path) as made:
            (tmp_path / "access.toml").write_text(alice_with_a_prefix)
            assert made.access.guard is not None
            made.access.guard.look()
            joined = Command(
                R.CLIENT_BEAT, body=ClientBeatBody("c@1", "readers", topics=("public",)).encode()
            )
            assert (await made.ask(made.clients["bob"], "coordinator", joined)).code == 0
            forged = Command(R.CLIENT_CLOSE, body=ClientBeatBody("c", "1@readers").encode())
            await made.ask(made.clients["alice"], "coordinator", forged)
            members = await made.ask(made.clients["bob"], "coordinator", EVERY[R.EXPLAIN](ANOTHERS))
            assert members.code == 0
            assert b"c@1" in members.body

    run(test)


@pytest.mark.abuse("A9")
def test_own_groups_say_nothing_of_other_users_topics(tmp_path: Path) -> None:
    """Progress, resets and barred groups named any topic; the answers had where it begins and ends, by number and
    time. A look at an own queue named any group, and had what that subscribes to."""

    async def test() -> None:
        async with world(tmp_path) as made:
            joined = beat("reader@1", group="readers", topic="public")
            assert (await made.ask(made.clients["bob"], "broker", joined)).code == 0
            for code, fields in (
                (R.GET_CONSUME_STATS, {"topic": "public"}),
                (R.GET_CONSUME_STATS, {"topic": "", "topicList": "public"}),
                (R.INVOKE_BROKER_TO_RESET_OFFSET, {"topic": "public", "timestamp": "-1"}),
                (R.UPDATE_AND_GET_GROUP_FORBIDDEN, {"topic": "public"}),
                (R.QUERY_CONSUME_QUEUE, {"consumerGroup": "readers"}),
            ):
                command = EVERY[code](OWN)
                command.fields |= fields
                answer = await made.ask(made.clients["alice"], "broker", command)
                assert (answer.code, bytes(answer.body)) == (NO_PERMISSION, b""), (code, fields)

    run(test)


def test_a_message_that_may_not_be_sent_back_makes_no_topic(tmp_path: Path) -> None:
    """The retry topic of the group was made before the request was refused."""

    async def test() -> None:
        async with world(tmp_path) as made:
            before = made.state()
            command = EVERY[R.CONSUMER_SEND_MSG_BACK](made.own._replace(position=made.anothers.position))
            assert (await made.ask(made.clients["alice"], "broker", command)).code == NO_PERMISSION
            assert made.state() == before

    run(test)


@pytest.mark.abuse("A9")
@pytest.mark.parametrize("code", [R.PULL_MESSAGE, R.POP_MESSAGE])
def test_a_right_that_is_withdrawn_ends_what_waits(tmp_path: Path, code: R) -> None:
    """A pull or pop that waited for messages got them, although its user had been disabled meanwhile."""

    async def test() -> None:
        async with world(tmp_path) as made:
            broker, guard = made.server.broker, made.access.guard
            assert broker is not None
            assert guard is not None
            command = EVERY[code](OWN)
            if code == R.PULL_MESSAGE:
                suspended = int(PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND)
                command.fields |= {
                    "queueOffset": "1",
                    "sysFlag": str(suspended),
                    "suspendTimeoutMillis": "20000",
                }
            else:
                command.fields |= {
                    "initMode": "1",
                    "pollTime": "20000",
                    "bornTime": str(Runtime.system().clock.now_ms()),
                }
                # The first pop takes what is there.
                await made.ask(made.clients["alice"], "broker", EVERY[code](OWN))
            waiting = asyncio.ensure_future(made.ask(made.clients["alice"], "broker", command))
            held = await made.ask(made.clients["alice"], "broker", EVERY[R.GET_MAX_OFFSET](OWN))
            assert (held.code, waiting.done()) == (0, False)
            assert broker.pop is not None
            popped = len(broker.pop.service.state)
            guard.change(guard.users.put(replace(guard.users.by_name["alice"], is_enabled=False)))
            assert (await made.ask(made.clients["admin"], "broker", EVERY[R.SEND_MESSAGE_V2](OWN))).code == 0
            answer = await waiting
            assert (answer.code, bytes(answer.body)) == (NO_PERMISSION, b"")
            # Nor was anything popped, which the rest of the group would have missed for a minute.
            assert len(broker.pop.service.state) == popped

    run(test)


@pytest.mark.abuse("A9")
@pytest.mark.parametrize("code", [R.SEND_REPLY_MESSAGE, R.SEND_REPLY_MESSAGE_V2])
def test_who_may_not_reply_reaches_no_client_with_a_reply(tmp_path: Path, code: R) -> None:
    """A reply goes to the client that it names, whatever its topic: Pub on any topic was enough to answer for
    others."""
    received: list[Command] = []

    def take(connection: Connection, command: Command) -> Command:
        received.append(command)
        return command.answer()

    async def test() -> None:
        async with world(tmp_path) as made:
            table = ProcessorTable()
            table.register(R.PUSH_REPLY_MESSAGE_TO_CLIENT, take)
            hook = SigningHook(Credentials(BOB["access_key"], BOB["secret_key"]), Runtime.system())
            victim = RemotingClient(table, runtime=Runtime.system(), hook=hook)
            try:
                assert (await made.ask(victim, "broker", beat("victim@1"))).code == 0
                forged = EVERY[code](OWN)
                field, properties = ("topic", "properties") if code == R.SEND_REPLY_MESSAGE else ("b", "i")
                for topic in ("orders", "orders_REPLY_TOPIC"):
                    # Both are alice's own; accounts that may create topics could make the second.
                    forged.fields |= {field: topic, properties: "REPLY_TO_CLIENT\x01victim@1\x02"}
                    answer = await made.ask(made.clients["alice"], "broker", forged)
                    assert (answer.code, received) == (NO_PERMISSION, []), topic
                allowed = EVERY[code](OWN)
                allowed.fields[properties] = "REPLY_TO_CLIENT\x01victim@1\x02"
                assert (await made.ask(made.clients["alice"], "broker", allowed)).code == 0
                assert len(received) == 1
            finally:
                await victim.close()

    run(test)
