"""One client library at one server, for the length of one test: names that no other test uses, clients that end with it.

`Peer` says in Python what a driver is told in JSON. It knows neither which language the client is written in nor whose
server it talks to: a test that holds for one pair must hold for all.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from penstock.errors import CodecError
from penstock.metadata import fastjson
from penstock.metadata.offset_table import ConsumerOffsetTable, TopicGroup
from tests.interop.wire.driver import Driver, Json

_NUMBERS = itertools.count(1)
DEFAULT_WAIT_MS = 15_000


class Server(Protocol):
    """A running name server and broker."""

    name: str
    nameserver: str
    broker: str
    store: Path

    def restart(self, *, crash: bool = False) -> None: ...

    def stop(self) -> None: ...

    def log_tail(self) -> str: ...


class Peer:
    def __init__(self, driver: Driver, server: Server) -> None:
        self.driver = driver
        self.server = server
        self._producer: str | None = None

    # -- names ---------------------------------------------------------------------------------------------------

    @staticmethod
    def fresh(kind: str) -> str:
        """A name for a topic, a group or a client that was never used before."""
        return f"{kind}-{next(_NUMBERS)}-{time.time_ns() // 1_000_000 % 100_000_000}"

    # -- producing -----------------------------------------------------------------------------------------------

    def producer(self) -> str:
        """The test's producer, started when first asked for."""
        if self._producer is None:
            self._producer = self.fresh("producer")
            group = f"group-of-{self._producer}"
            self.driver.do("producer", name=self._producer, group=group, nameserver=self.server.nameserver)
        return self._producer

    def send(
        self, topic: str, messages: Iterable[str | Json], *, how: str = "sync", **more: Any
    ) -> list[Json]:
        """Results in order. A plain text is a message with that body."""
        specs = [{"body": each} if isinstance(each, str) else each for each in messages]
        command = {"name": self.producer(), "topic": topic, "how": how, "messages": specs, **more}
        results: list[Json] = self.driver.do("send", **command)["results"]
        return results

    def transacting(self, *, group: str | None = None, answer: str | None = None) -> str:
        """The name of a transactional producer that has started; `answer`: what it says to every question."""
        name = self.fresh("transacting")
        command = {"name": name, "group": group or f"group-of-{name}", "nameserver": self.server.nameserver}
        self.driver.do("transaction_producer", **command, **({} if answer is None else {"answer": answer}))
        return name

    def transact(self, name: str, topic: str, messages: Iterable[tuple[str, str, str]]) -> list[Json]:
        """One transaction for each body; what its local work comes to, and what questions are answered with."""
        specs = [
            {"body": body, "keys": f"k-{body}", "properties": {"local": local, "check": check}}
            for body, local, check in messages
        ]
        results: list[Json] = self.driver.do("transaction", name=name, topic=topic, messages=specs)["results"]
        return results

    def questions(self, name: str) -> list[Json]:
        """What a transactional producer was asked about so far."""
        messages: list[Json] = self.driver.do("questions", name=name)["messages"]
        return messages

    def create_topic(self, queues: int = 4) -> str:
        """A new topic, which has its route when this returns."""
        topic = self.fresh("topic")
        self.driver.do("create_topic", name=self.producer(), topic=topic, queues=queues)
        return topic

    # -- consuming -----------------------------------------------------------------------------------------------

    def push(self, topic: str, *, group: str | None = None, driver: Driver | None = None, **more: Any) -> str:
        """The name of a push consumer that has started."""
        name = self.fresh("push")
        group = group or self.fresh("group")
        command = {"name": name, "group": group, "nameserver": self.server.nameserver, "topic": topic}
        (driver or self.driver).do("push", **command, **more)
        return name

    def received(
        self, name: str, count: int, *, wait_ms: int = DEFAULT_WAIT_MS, driver: Driver | None = None
    ) -> list[Json]:
        """What a push consumer was given, once there are `count` of them or the time is over."""
        command = {"name": name, "count": count, "timeout": wait_ms}
        messages: list[Json] = (driver or self.driver).do("received", wait_s=wait_ms / 1000 + 10, **command)[
            "messages"
        ]
        return messages

    def assigned(self, name: str, *, driver: Driver | None = None) -> list[str]:
        """The queues that a push consumer has now, its retry queue left out."""
        queues = (driver or self.driver).do("assigned", name=name)["queues"]
        return [queue for queue in queues if not queue.startswith("%RETRY%")]

    # -- end -----------------------------------------------------------------------------------------------------

    def close(self, name: str) -> None:
        """Stops one client. A message counts as consumed only a moment after the listener was given it."""
        time.sleep(0.3)
        self.driver.do("close", name=name)

    def end(self) -> None:
        self.driver.do("close_all")
        self._producer = None


def bodies(messages: Iterable[Json]) -> list[str]:
    return sorted(message["body"] for message in messages)


def saved_offset_sum(store: Path, topic: str, group: str) -> int:
    """How many messages a group has consumed of a topic by the file that a killed broker would start from."""
    try:
        text = (store / "config" / ConsumerOffsetTable.FILE_NAME).read_bytes()
        saved = ConsumerOffsetTable.from_json(fastjson.loads(text))
    except (FileNotFoundError, CodecError):  # not written yet, or being written
        return 0
    return sum(saved.offsets.get(TopicGroup(topic, group), {}).values())


def offset_id_parts(offset_id: str) -> tuple[str, int, int]:
    """Host, port and log position that an offset id of IPv4 form carries."""
    assert re.fullmatch(r"[0-9A-F]{32}", offset_id), offset_id
    raw = bytes.fromhex(offset_id)
    host = ".".join(map(str, raw[:4]))
    return host, int.from_bytes(raw[4:8], "big"), int.from_bytes(raw[8:], "big")


def in_queue_order(messages: Sequence[Json]) -> dict[int, list[Json]]:
    """Messages by queue id, in the order in which they arrived."""
    queues: dict[int, list[Json]] = {}
    for message in messages:
        queues.setdefault(message["queueId"], []).append(message)
    return queues
