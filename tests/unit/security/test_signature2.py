"""Signature 2: what it covers, who is told of it, and that nothing leads back to signature 1."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.client.async_consumer import AsyncConsumer
from penstock.client.async_producer import AsyncProducer
from penstock.client.scanning import AsyncScan
from penstock.errors import OptionError, RequestError, ResponseError
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import ONEWAY_FLAG, Command, decode_frame, encode_frame
from penstock.remoting import Connection, ProcessorTable, RemotingClient, RemotingServer
from penstock.runtime import Runtime
from penstock.security import AccessOptions, Credentials, Guard, SigningHook
from penstock.security.credentials import from_file
from penstock.security.known_fields import DESCRIBED, known_fields
from penstock.security.options import UnknownFields
from penstock.security.signatures import announcement, is_signed2, sign, sign2
from penstock.testing.clock import ManualClock
from tests.support.guarded import ADMIN, APP, SECRET, USERS, caller, code_of, guarded, run

LOCAL = "127.0.0.1"
SEND = int(RequestCode.SEND_MESSAGE_V2)
BODY = b"42-transfer one hundred to account 1"


def make(tmp_path: Path, **options: object) -> Guard:
    path = tmp_path / "access.toml"
    path.write_text(USERS)
    chosen = AccessOptions(enabled=True, **options)  # type: ignore[arg-type]
    return Guard(chosen, path, Runtime(clock=ManualClock()))


def hook(minimum: int = 1) -> SigningHook:
    keys = Credentials("app", SECRET, min_signature=minimum)
    return SigningHook(keys, Runtime(clock=ManualClock()))


def send(**fields: str) -> Command:
    return Command(SEND, {"a": "p", "b": "orders", "e": "0", "g": "1700000000000", **fields}, BODY)


def signed(minimum: int, address: str = "address", command: Command | None = None) -> Command:
    command = command or send()
    hook(minimum).before_request(address, command)
    return command


def rocketmq(command: Command) -> Command:
    """As RocketMQ's clients sign."""
    command.fields["AccessKey"] = "app"
    command.fields["Signature"] = sign(SECRET, command.fields, command.body)
    return command


def refusal(guard: Guard, command: Command) -> str:
    with pytest.raises(RequestError) as caught:
        guard.check(LOCAL, command)
    assert caught.value.code == ResponseCode.NO_PERMISSION
    return caught.value.message


def moved(command: Command, name: str, count: int) -> Command:
    """The attack: bytes from the front of the body become a field whose name sorts behind the others."""
    assert name > max(name for name in command.fields if name != "Signature")
    fields = {**command.fields, name: bytes(command.body[:count]).decode()}
    return replace(command, fields=fields, body=command.body[count:])


def test_the_vector_of_the_page() -> None:
    command = Command(310, {"AccessKey": "ak", "b": "T"}, b"hi")
    assert sign2("sk", command) == "znAbtDTad/Qpu4w7lIjLWqyeMGV9PzvTZLvlfvHEr/I="


# -- what is covered -----------------------------------------------------------------------------------------


@pytest.mark.abuse("A10")
@pytest.mark.parametrize(
    "change",
    [
        lambda command: moved(command, "zz", 3),
        lambda command: moved(command, "penstockSequence", 2),
        lambda command: replace(command, code=int(RequestCode.SEND_MESSAGE)),
        lambda command: replace(command, flag=ONEWAY_FLAG),
        lambda command: replace(command, version=399),
        lambda command: replace(command, language="JAVA"),
        lambda command: replace(command, remark="more"),
        lambda command: replace(command, body=command.body + b"0"),
        lambda command: replace(command, fields=renamed(command.fields, "e", "j")),
        lambda command: replace(command, fields={**command.fields, "a": "porders", "b": ""}),
        lambda command: replace(command, fields={**command.fields, "c": ""}),
        lambda command: replace(command, fields=renamed(command.fields, "PenstockSignature", "Signature")),
        lambda command: replace(command, fields={**command.fields, "PenstockSignature": ""}),
        lambda command: replace(command, fields={**command.fields, "PenstockSignature": "\ud800"}),
    ],
)
def test_any_change_breaks_signature_2(tmp_path: Path, change: Callable[[Command], Command]) -> None:
    guard = make(tmp_path)
    command = signed(2)
    assert "not valid" in refusal(guard, change(command))
    guard.check(LOCAL, command)


def renamed(fields: dict[str, str], old: str, new: str) -> dict[str, str]:
    return {new if name == old else name: value for name, value in fields.items()}


def test_large_bodies_are_covered_too() -> None:
    large = Command(SEND, {"b": "orders"}, bytes(100_000))
    assert sign2(SECRET, large) != sign2(SECRET, replace(large, body=bytes(99_999) + b"x"))
    small = replace(large, body=b"")
    assert len({sign2(SECRET, one) for one in (large, small)}) == 2


def test_it_survives_both_forms_of_the_header() -> None:
    for binary in (False, True):
        command = Command(SEND, {"b": "orders", "c": ""}, b"body", 7, ONEWAY_FLAG, binary=binary)
        signed(2, command=command)
        data = encode_frame(command)
        assert is_signed2(SECRET, decode_frame(data, 0, len(data)))


def test_it_is_taken_once(tmp_path: Path) -> None:
    guard = make(tmp_path)
    command = signed(2)
    guard.check(LOCAL, command)
    assert "received before" in refusal(guard, command)
    bare = send(AccessKey="app")
    bare.fields["PenstockSignature"] = sign2(SECRET, bare)
    assert "no stamp" in refusal(guard, bare)


def test_one_signature_that_is_right_does_not_excuse_the_other(tmp_path: Path) -> None:
    command = signed(2)
    command.fields["Signature"] = sign(SECRET, command.fields, command.body)
    assert "not valid" in refusal(make(tmp_path), command)


# -- signature 1: defined fields only ------------------------------------------------------------------------


@pytest.mark.abuse("A9")
@pytest.mark.abuse("A10")
@pytest.mark.parametrize("name", ["zz", "penstockProducer", "penstockSequence"])
def test_bytes_of_the_body_do_not_become_a_field(tmp_path: Path, name: str) -> None:
    """The signature still fits; only the name of the field tells that it was added."""
    command = moved(rocketmq(send()), name, 2)
    assert "is not defined" in refusal(make(tmp_path), command)
    assert "is not defined" in refusal(make(tmp_path), moved(signed(1), "zz", 2))


def test_an_option_only_logs_undefined_fields(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    guard = make(tmp_path, unknown_fields=UnknownFields.LOG)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            guard.check(LOCAL, rocketmq(send(zz="1")))
    assert caplog.text.count("undefined field 'zz'") == 1


def test_fields_of_every_request_are_taken(tmp_path: Path) -> None:
    everywhere = {"bname": "b", "lo": "true", "ns": "n", "nsd": "true", "oway": "false", "ReqT": "0"}
    everywhere |= {"__ZONE_NAME": "z", "__ZONE_MODE": "true", "SecurityToken": "t"}
    make(tmp_path).check(LOCAL, rocketmq(send(**everywhere)))


def test_every_request_has_its_fields() -> None:
    missing = [code.name for code in RequestCode if code not in DESCRIBED]
    assert not missing, "describe their fields in known_fields.py"
    everywhere = known_fields(-1, stamped=True)
    without = {RequestCode.HEART_BEAT, RequestCode.CLIENT_BEAT, RequestCode.BATCH_ACK_MESSAGE}
    assert known_fields(SEND, stamped=False) > known_fields(-1, stamped=False)
    for code in without:
        assert known_fields(code, stamped=True) == everywhere
    assert "penstockProducer" in known_fields(SEND, stamped=True)
    assert "penstockProducer" not in known_fields(SEND, stamped=False)
    assert "queryId" in known_fields(RequestCode.PUBLISH_STAGED, stamped=True)


def test_a_server_can_require_signature_2(tmp_path: Path) -> None:
    guard = make(tmp_path, min_signature=2)
    assert "requires signature 2" in refusal(guard, rocketmq(send()))
    assert "requires signature 2" in refusal(guard, signed(1))
    guard.check(LOCAL, signed(2))
    own = guard.own_credentials()
    assert own is not None
    assert own.min_signature == 2


# -- who is told, and no way back ----------------------------------------------------------------------------


def next_signature(one: SigningHook) -> str:
    command = send()
    one.before_request("address", command)
    return "2" if "PenstockSignature" in command.fields else "1" if "Signature" in command.fields else "none"


@pytest.mark.abuse("A10")
def test_a_forged_announcement_is_ignored_and_a_proven_one_lasts() -> None:
    one, request = hook(), send()
    one.before_request("address", request)
    stamp = request.fields["PenstockStamp"]
    for forged in ("", "2", "2-", announcement("another secret", stamp), announcement(SECRET, stamp + "0")):
        assert not one.after_response("address", request, Command(0, {"PenstockSignature": forged}))
        assert next_signature(one) == "1"
    refused = {"PenstockSignature": announcement(SECRET, stamp)}
    assert not one.after_response("address", request, Command(16, refused)), "that proof is not of a refusal"
    assert next_signature(one) == "2"
    # What an old server, or an attacker in its place, would answer.
    old = Command(int(ResponseCode.NO_PERMISSION), remark="the signature of 'app' is not valid")
    for answer in (old, Command(0), Command(3)):
        again = send()
        one.before_request("address", again)
        assert not one.after_response("address", again, answer)
        assert next_signature(one) == "2"
    # An answer to an old request that comes late.
    one.after_response("address", request, Command(0))
    assert next_signature(one) == "2"


def test_the_server_announces_it_to_its_users_only(tmp_path: Path) -> None:
    guard = make(tmp_path)
    command = signed(1)
    guard.check(LOCAL, command)
    stamp = command.fields["PenstockStamp"]
    assert command.answer_fields == {"PenstockSignature": announcement(SECRET, stamp)}
    plain = rocketmq(send())
    guard.check(LOCAL, plain)
    assert plain.answer_fields is None
    stranger = signed(1)
    stranger.fields["Signature"] = "A" * 28
    refusal(guard, stranger)
    assert stranger.answer_fields is None


def test_a_client_moves_to_signature_2_with_the_first_answer(tmp_path: Path) -> None:
    async def test() -> None:
        async with guarded(tmp_path) as server, caller(APP) as client:
            commands = [Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}) for _ in range(3)]
            for command in commands:
                await client.call(server.address, command)
            assert ["Signature" in command.fields for command in commands] == [True, False, False]
            assert ["PenstockSignature" in command.fields for command in commands] == [False, True, True]

    run(test)


def test_a_server_that_requires_it_serves_clients_that_do_not_know_yet(tmp_path: Path) -> None:
    """The refusal says that the server takes signature 2, and the request is sent once more."""

    async def test() -> None:
        async with guarded(tmp_path, min_signature=2) as server:
            async with AsyncProducer(server.address, **APP) as producer:
                for number in range(5):
                    await producer.send("orders", str(number).encode())
            async with AsyncConsumer(server.address, "billing", start_from="first", **APP) as consumer:
                await consumer.subscribe("orders")
                found = set()
                async for message in consumer:
                    found.add(message.body)
                    if len(found) == 5:
                        break
            async with AsyncScan(server.address, **APP) as scan:
                ends = [
                    (await scan.pull(queue, 0, rows=10, size=65_536)).max
                    for queue in await scan.queues("orders")
                ]
                assert sum(ends) == 5
            async with caller(ADMIN) as client:
                java = rocketmq(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}))
                bare = RemotingClient(runtime=Runtime.system())
                try:
                    assert (await bare.call(server.address, java)).code == ResponseCode.NO_PERMISSION
                finally:
                    await bare.close()
                view = Command(RequestCode.GET_BROKER_CONFIG)
                assert await code_of(client, server.broker_address, view) == 0

    run(test)


class OldServer:
    """A server without signature 2, as RocketMQ's or Penstock 0.1's: it takes signature 1 and nothing else."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        table = ProcessorTable()
        table.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._answer)
        self._server = RemotingServer(LOCAL, 0, table, runtime=Runtime.system())

    def _answer(self, connection: Connection, command: Command) -> Command:
        is_first = "Signature" in command.fields
        self.seen.append("1" if is_first else "2")
        return command.answer(0 if is_first else int(ResponseCode.NO_PERMISSION), "")

    async def __aenter__(self) -> str:
        await self._server.start()
        return str(self._server.address)

    async def __aexit__(self, *error: object) -> None:
        await self._server.stop()


@pytest.mark.parametrize(("minimum", "codes", "seen"), [(1, [0, 0], ["1", "1"]), (2, [16, 16], ["2", "2"])])
def test_an_old_server_is_served_unless_signature_2_is_required(
    minimum: int, codes: list[int], seen: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        server = OldServer()
        keys = Credentials("app", SECRET, min_signature=minimum)
        client = RemotingClient(runtime=Runtime.system(), hook=SigningHook(keys, Runtime.system()))
        async with server as address:
            asked = [Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}) for _ in range(2)]
            assert [await code_of(client, address, command) for command in asked] == codes
            await client.close()
        assert server.seen == seen

    with caplog.at_level(logging.INFO):
        run(test)
    assert caplog.text.count("does not announce signature 2") == (1 if minimum == 1 else 0)


def test_where_the_minimum_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys.toml"
    path.write_text('access_key = "app"\nsecret_key = "do-not-tell"\nmin_signature = 2\n')
    assert from_file(path, Runtime.system().disk).min_signature == 2
    path.write_text('access_key = "app"\nsecret_key = "do-not-tell"\nmin_signature = 3\n')
    with pytest.raises(OptionError, match="min_signature"):
        from_file(path, Runtime.system().disk)
    monkeypatch.setenv("PENSTOCK_MIN_SIGNATURE", "2")

    async def test() -> None:
        server = OldServer()
        async with server as address:
            producer = AsyncProducer(address, retries=0, call_timeout_ms=2_000, **APP)
            with pytest.raises(ResponseError, match="answered 16"):
                async with producer:
                    await producer.send("orders", b"x")
        assert set(server.seen) == {"2"}

    run(test)
    monkeypatch.setenv("PENSTOCK_MIN_SIGNATURE", "3")
    with pytest.raises(OptionError, match="PENSTOCK_MIN_SIGNATURE"):
        run(test)
