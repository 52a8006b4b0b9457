"""A hundred thousand mutated frames at a real name server and a real broker, while honest clients go on working."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from penstock import Admin, Producer
from penstock.protocol.command import Command
from tests.abuse.corpus import BROKER_REQUESTS, NAME_SERVER_REQUESTS, TOPIC
from tests.abuse.mutation import Mutator
from tests.abuse.observed import Facts, Observed
from tests.abuse.storm import Storm, Target

FRAMES = int(os.environ.get("FRAMES") or 100_000)
SEED = int(os.environ.get("SEED") or 20261116)
HONEST = "honest"
# Answers that wait for a file or a flush, and those that wait for messages or for a client.
LATER = frozenset((10, 12, 17, 18, 21, 36, 43, 200, 201, 207, 215, 225, 310, 314, 317, 320))
HELD = frozenset((11, 223, 307, 309, 324, 325, 361))


class HonestWork:
    """Sends one message after the other in a thread of its own, and remembers what was acknowledged."""

    def __init__(self, name_server: str) -> None:
        self._name_server = name_server
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="honest work")
        self.sent: list[tuple[str, bytes]] = []
        self.times: list[float] = []
        self.trouble: BaseException | None = None

    def _work(self) -> None:
        try:
            with Producer(self._name_server, group="honest-producer") as producer:
                while not self._stopping.is_set():
                    body = f"message {len(self.sent)}".encode() * 10
                    started = time.perf_counter()
                    result = producer.send(HONEST, body)
                    self.times.append(time.perf_counter() - started)
                    self.sent.append((result.offset_msg_id, body))
                    time.sleep(0.01)
        except BaseException as error:
            self.trouble = error

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        if self.trouble is not None:
            raise self.trouble


async def storm(broker: Observed, names: Observed) -> tuple[Storm, Storm]:
    at_broker = Storm(
        Target(broker.ready["broker"], Command(30, {"topic": TOPIC, "queueId": "0"}), LATER, HELD),
        Mutator(BROKER_REQUESTS, SEED),
    )
    at_names = Storm(
        Target(names.ready["nameserver"], Command(105, {"topic": "nope"}), frozenset((100, 102, 103))),
        Mutator(NAME_SERVER_REQUESTS, SEED + 1),
    )
    await asyncio.gather(at_broker.run(0, FRAMES * 2 // 3), at_names.run(0, FRAMES - FRAMES * 2 // 3))
    return at_broker, at_names


def settled(server: Observed, before: Facts) -> Facts:
    """What a server holds once it had time to let go: connections close, timers run."""
    deadline = time.monotonic() + 20
    while True:
        now = server.facts()
        if now.sockets <= before.sockets + 4 or time.monotonic() > deadline:
            return now
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.abuse("A1")
@pytest.mark.abuse("A3")
@pytest.mark.abuse("A4")
@pytest.mark.abuse("A5")
@pytest.mark.abuse("A6")
@pytest.mark.fault("F14")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I16")
@pytest.mark.timeout(max(600, FRAMES // 100))
def test_no_frame_harms_the_servers_or_anybody_else(tmp_path: Path) -> None:
    names = Observed(tmp_path / "names", "nameserver", "--port", "0", "--data", str(tmp_path / "names-data"))
    try:
        limits = ["--set", "broker.auto_topics_max=200", "--set", "broker.auto_groups_max=200"]
        place = ["--port", "0", "--data", str(tmp_path / "data"), "--nameserver", names.ready["nameserver"]]
        broker = Observed(tmp_path / "broker", "broker", *place, *limits)
        try:
            check(broker, names)
        finally:
            broker_status = broker.stop()
    finally:
        names_status = names.stop()
    assert (broker_status, names_status) == (0, 0)
    for server in (broker, names):
        assert "Traceback" not in server.log()


def check(broker: Observed, names: Observed) -> None:
    work = HonestWork(names.ready["nameserver"])
    work.start()
    try:
        before = broker.facts(), names.facts()
        started = time.monotonic()
        at_broker, at_names = asyncio.run(storm(broker, names))
        took = time.monotonic() - started
    finally:
        work.stop()
    times = sorted(work.times)
    print(f"\n[{FRAMES} mutated frames, seed {SEED}] {took:.1f} s")
    print(f"  broker: {at_broker.report}\n  name server: {at_names.report}")
    print(
        f"  honest sends: {len(times)}, median {times[len(times) // 2] * 1e3:.1f} ms, longest {times[-1]:.2f} s"
    )
    assert at_broker.report.frames + at_names.report.frames == FRAMES
    assert not at_broker.report.surprises
    assert not at_names.report.surprises
    after = settled(broker, before[0]), settled(names, before[1])
    print(f"  before {before}\n  after  {after}")
    for was, now in zip(before, after, strict=True):
        assert now.sockets <= was.sockets + 4
        assert now.threads <= was.threads + 8
        assert now.tasks <= was.tasks + 16
        assert now.memory < was.memory + (256 << 20)
    with Admin(names.ready["nameserver"]) as admin:
        for message_id, body in work.sent[:: max(1, len(work.sent) // 500)] + work.sent[-1:]:
            assert admin.get_message(message_id).body == body
        found = sum(admin.max_offset(queue) - admin.min_offset(queue) for queue in admin.queues(HONEST))
        assert found == len(work.sent) > 100
