"""Requests that nobody sane sends: every handler answers them or refuses them, and the tables stay sound."""

import asyncio
import inspect
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.message import HostAddress
from penstock.nameserver import NameServer, NameServerOptions
from penstock.protocol.command import Command, encode_frame
from penstock.runtime import Runtime
from tests.support.nameserver_wire import register_command

NAMES = (
    *(
        "brokerName",
        "brokerAddr",
        "clusterName",
        "haServerAddr",
        "brokerId",
        "compressed",
        "bodyCrc32",
        "topic",
    ),
    *(
        "heartbeatTimeoutMillis",
        "enableActingMaster",
        "__ZONE_NAME",
        "__ZONE_MODE",
        "cluster",
        "namespace",
        "key",
    ),
    *("value", "acceptStandardJsonOnly", "epoch"),
)
VALUES = st.one_of(
    st.sampled_from(
        ("", "0", "-1", "9223372036854775807", "true", "T", "broker-a", "c", "10.0.0.1:10911", "0.0.0.0:1")
    ),
    st.text(max_size=40),
)
JUNK = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(
        (b"{}", b"[]", b"null", b'{"queueDatas":[{}]}', b'{"topicConfigSerializeWrapper":{}}', b"a=b")
    ),
    st.binary(max_size=100).map(zlib.compress),
)


class Anybody:
    """As much of a connection as handlers look at."""

    id = 1
    peer = HostAddress("127.0.0.1", 40_000)
    local = HostAddress("127.0.0.1", 9876)
    is_open = True

    def send(self, command: Command) -> None:
        encode_frame(command)

    def close(self, why: str = "") -> None:
        self.is_open = False


async def handle(server: NameServer, command: Command) -> int:
    """The code of the answer."""
    handler = server.server.table.find(command.code)
    assert handler is not None
    try:
        answer = handler(Anybody(), command)  # type: ignore[arg-type]
        if inspect.isawaitable(answer):
            answer = await answer
    except PenstockError as error:
        answer = command.answer(error.code, str(error))
    assert answer is not None
    assert -32768 <= answer.code <= 32767
    assert len(answer.remark or "") < 2_000
    encode_frame(answer)
    server.routes.validate()
    return answer.code


def new_server() -> NameServer:
    return NameServer(
        NameServerOptions(notify_min_broker_id=True, acting_master=True), runtime=Runtime.system()
    )


CODES = new_server().server.table.codes


@pytest.mark.abuse("A3")
@pytest.mark.abuse("A6")
@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(CODES), st.dictionaries(st.sampled_from(NAMES), VALUES), JUNK, st.integers(0, 500)
        ),
        max_size=8,
    )
)
def test_any_request_is_answered(requests: list[tuple[int, dict[str, str], bytes, int]]) -> None:
    async def run() -> None:
        server = new_server()
        assert await handle(server, register_command()) == 0
        for code, fields, body, version in requests:
            await handle(server, Command(code, fields, body, version=version))

    asyncio.run(run())


@pytest.mark.abuse("A3")
@pytest.mark.abuse("A5")
@settings(max_examples=300)
@given(st.data(), st.booleans())
def test_a_damaged_registration_is_refused_or_taken_whole(data: st.DataObject, is_compressed: bool) -> None:
    """One byte changed, some bytes cut, some added; the checksum off, so that the reader itself is tried."""
    good = register_command(is_compressed=is_compressed, is_checked=False, mappings={"T": {"epoch": 1}})
    body = bytearray(good.body)
    at = data.draw(st.integers(0, len(body) - 1))
    how = data.draw(st.sampled_from(("change", "cut", "add")))
    if how == "change":
        body[at] ^= data.draw(st.integers(1, 255))
    elif how == "cut":
        del body[at : at + data.draw(st.integers(1, 20))]
    else:
        body[at:at] = data.draw(st.binary(min_size=1, max_size=20))
    good.body = bytes(body)

    async def run() -> None:
        server = new_server()
        code = await handle(server, good)
        assert code in (0, 1)
        assert bool(server.routes.live) is (code == 0)

    asyncio.run(run())
