"""Everything that others rely on, against a stored list: names, commands, settings, loggers, files, answers.

A difference is not always a mistake, but it is always to be meant: write the list anew with PENSTOCK_SURFACE=write,
read the difference, and say it in the list of changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import penstock
import penstock.spark
import penstock.testing
from penstock.cli.main import root
from penstock.protocol.command import Command
from penstock.testing.embedded import EmbeddedBroker
from tests.support import public_surface
from tests.support.nameserver_wire import name_server
from tests.support.raw_peer import RawPeer
from tests.support.request_corpus import BROKER_REQUESTS, NAME_SERVER_REQUESTS, TOPIC, Request
from tests.support.running_broker import running

FOLDER = Path(__file__).with_name("public_surface")
WRITING = os.environ.get("PENSTOCK_SURFACE") == "write"
# Numbers that differ from run to run.
VARYING = re.compile(r"\b127\.0\.0\.1:\d+\b|\b\d{4,}\b|(?<=@)[0-9a-f]{6,}")
# They ask another broker or a coordinator, or wait for messages: when they answer depends on time.
WAITING = {11, 39, 200050, 200054, 200070, 361, 34, 9026, 9027, 9028}


def compare(name: str, lines: Iterable[str]) -> None:
    path, found = FOLDER / f"{name}.txt", "".join(f"{line}\n" for line in lines)
    if WRITING:
        FOLDER.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
        return
    stored = path.read_text(encoding="utf-8")
    if found != stored:
        changes = difflib.unified_diff(
            stored.splitlines(), found.splitlines(), "stored", "found", lineterm="", n=1
        )
        pytest.fail(
            "what others rely on has changed; if that is meant, write the list with PENSTOCK_SURFACE=write "
            "and read the difference\n" + "\n".join(changes)
        )


def test_names_and_signatures_of_the_library() -> None:
    modules = [penstock, penstock.testing]
    if importlib.util.find_spec("pyspark") is not None:
        modules.append(penstock.spark)
    compare("api", (line for module in modules for line in public_surface.api(module)))


def test_commands_and_entry_points() -> None:
    compare("entries", public_surface.entries(root))


def test_keys_of_the_configuration() -> None:
    compare("settings", public_surface.settings())


def test_names_of_loggers() -> None:
    compare("loggers", public_surface.loggers())


def test_files_of_a_broker(tmp_path: Path) -> None:
    """After messages of every kind, progress of a group, and a clean stop."""

    async def use() -> None:
        server = EmbeddedBroker(tmp_path / "data")
        await server.start()
        try:
            async with (
                penstock.AsyncAdmin(server.address) as admin,
                penstock.AsyncProducer(server.address, group="producers", idempotent=True) as producer,
                penstock.AsyncConsumer(server.address, "readers", start_from="first") as consumer,
            ):
                await admin.create_topic("orders", 1)
                await producer.send("orders", b"plain", keys="k")
                await producer.send("orders", b"by level", delay_level=1)
                await producer.send("orders", b"by time", delay=60.0)
                await consumer.subscribe("orders")
                (message,) = await consumer.poll(1, timeout_s=60)
                await consumer.commit()
                assert message.body == b"plain"
        finally:
            await server.stop()

    asyncio.run(use())
    compare("files", public_surface.files(tmp_path / "data"))


@pytest.mark.parametrize("kind", ["broker", "nameserver"])
def test_codes_and_remarks_of_answers(kind: str, tmp_path: Path) -> None:
    """Each request as it should be, then without its fields, then without its body; one after the other."""

    async def lines() -> list[str]:
        found = []
        async with server(kind, tmp_path) as address:
            requests = BROKER_REQUESTS if kind == "broker" else NAME_SERVER_REQUESTS
            for request in sorted(requests, key=lambda one: one.code):
                if request.code not in WAITING:
                    for form, command in forms(request):
                        found.append(f"{request.code} {form}: {await answer(address, command)}")
        return found

    compare(f"answers-{kind}", asyncio.run(lines()))


@contextlib.asynccontextmanager
async def server(kind: str, path: Path):
    if kind == "nameserver":
        async with name_server() as found:
            yield found.address
        return
    async with running(path) as bench:
        fields = {"topic": TOPIC, "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
        more = {
            "defaultTopic": "TBW102",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        assert (await bench.client.call(17, fields | more)).code == 0
        yield bench.broker.address


def forms(request: Request) -> Iterator[tuple[str, Command]]:
    yield "whole", Command(request.code, dict(request.fields), request.body, version=request.version)
    if request.fields:
        yield "no fields", Command(request.code, {}, request.body, version=request.version)
    if request.body:
        yield "no body", Command(request.code, dict(request.fields), b"", version=request.version)


async def answer(address: str, command: Command) -> str:
    """Code and remark; a connection of its own, because a bad request may close it."""
    peer = await RawPeer.connect(address)
    try:
        async with asyncio.timeout(60):
            got = await peer.ask(command)
    except (asyncio.IncompleteReadError, ConnectionError):
        return "closed"
    except TimeoutError:
        return "no answer"
    finally:
        await peer.close()
    return f"{got.code} {VARYING.sub('<n>', got.remark or '')}".rstrip()
