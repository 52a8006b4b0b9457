"""Penstock's coordinator as the controller of a real RocketMQ 5.3.3 broker set, and RocketMQ's mqadmin at it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client.consumer import Consumer
from penstock.client.producer import Producer
from penstock.errors import PenstockError
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.remoting import RemotingClient
from penstock.runtime import Runtime
from tests.interop.java_errors import RegistryOutOfReach
from tests.interop.java_release import missing_tools, prepare_build
from tests.interop.wire.background import Background, free_port, is_listening
from tests.interop.wire.rocketmq_server import JVM_OPTIONS, SERVER_BUILD, mqadmin_command
from tests.support.server_processes import ServerProcess

pytestmark = [pytest.mark.interop, pytest.mark.java, pytest.mark.timeout(300)]
NAME = "broker-j"


class JavaSet:
    """Two RocketMQ brokers in controller mode, their name server, and our coordinator."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._home = prepare_build(SERVER_BUILD)
        self.coordinator = ServerProcess("coordinator", folder / "coordinator")
        self.coordinator.start()
        port = free_port()
        self.nameserver = f"127.0.0.1:{port}"
        (folder / "namesrv.conf").write_text(
            f"listenPort={port}\nbindAddress=127.0.0.1\nkvConfigPath={folder}/kv.json\n"
        )
        self._names = self._java("namesrv.NamesrvStartup", folder / "namesrv.conf", "namesrv", 128)
        self._names.wait_until(lambda: is_listening(self.nameserver), "the name server")
        self.brokers: dict[int, Background] = {}
        for broker_id in (1, 2):
            self.start_broker(broker_id)

    def start_broker(self, broker_id: int) -> None:
        folder = self._folder / f"broker-{broker_id}"
        config = folder / "broker.conf"
        if not folder.exists():
            folder.mkdir()
            store = folder / "store"
            settings = {
                "brokerClusterName": "DefaultCluster",
                "brokerName": NAME,
                "brokerIP1": "127.0.0.1",
                "brokerIP2": "127.0.0.1",
                "bindAddress": "127.0.0.1",
                "listenPort": free_port(neighbours=(-2, 1)),
                "namesrvAddr": self.nameserver,
                "storePathRootDir": store,
                "storePathCommitLog": store / "commitlog",
                "mappedFileSizeCommitLog": 64 << 20,
                "mappedFileSizeConsumeQueue": 300_000,
                "deleteWhen": 25,
                "diskMaxUsedSpaceRatio": 95,
                "enableControllerMode": "true",
                "controllerAddr": self.coordinator.address,
                "allAckInSyncStateSet": "true",
            }
            config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        broker = self._java("broker.BrokerStartup", config, f"broker-{broker_id}", 400)
        boots = broker.log_path.read_text(errors="replace").count("boot success")
        broker.wait_until(
            lambda: broker.log_path.read_text(errors="replace").count("boot success") > boots, "the broker"
        )
        self.brokers[broker_id] = broker

    def _java(self, main: str, config: Path, name: str, heap_mib: int) -> Background:
        home = self._folder / name
        home.mkdir(exist_ok=True)
        options = [*JVM_OPTIONS, f"-Xmx{heap_mib}m", f"-Duser.home={home}"]
        options += ["-Drocketmq.broker.diskSpaceWarningLevelRatio=0.995"]
        class_path = f"{self._home / 'classes'}:{self._home / 'lib'}/*"
        command = ["java", *options, "-cp", class_path, f"org.apache.rocketmq.{main}", "-c", str(config)]
        environment = {"ROCKETMQ_HOME": str(home), "NAMESRV_ADDR": ""}
        return Background(command, home / "output.log", environment=environment)

    def status(self) -> dict[str, Any]:
        """The set as the coordinator sees it."""

        async def ask() -> dict[str, Any]:
            client = RemotingClient(runtime=Runtime.system())
            try:
                answer = await client.call(
                    self.coordinator.address, Command(RequestCode.COORDINATOR_STATUS), timeout_ms=10_000
                )
                found: dict[str, Any] = json.loads(answer.body)["brokerSets"].get(NAME, {})
                return found
            finally:
                await client.close()

        return asyncio.run(ask())

    def wait(self, holds: Callable[[dict[str, Any]], bool], timeout_s: float = 60) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while not holds(found := self.status()):
            assert time.monotonic() < deadline, found
            time.sleep(0.1)
        return found

    def mqadmin(self, *words: str) -> str:
        done = subprocess.run(
            [
                *mqadmin_command(self._folder, "org.apache.rocketmq.tools.command.MQAdminStartup"),
                *(*words, "-n", self.nameserver),
            ],
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        return done.stdout

    def stop(self) -> None:
        for broker in self.brokers.values():
            broker.kill()
        self._names.kill()
        if self.coordinator.is_running:
            self.coordinator.kill()


@pytest.fixture
def java_set(tmp_path: Path) -> Iterator[JavaSet]:
    missing = missing_tools()
    if missing is not None:
        pytest.skip(missing)
    try:
        prepare_build(SERVER_BUILD)
    except RegistryOutOfReach as unreachable:
        pytest.skip(str(unreachable))
    found = JavaSet(tmp_path)
    try:
        yield found
    finally:
        found.stop()


def send_until_stored(address: str, bodies: list[bytes], timeout_s: float = 60) -> None:
    """A master may be about to take its role."""
    deadline = time.monotonic() + timeout_s
    waiting = list(bodies)
    while waiting:
        try:
            with Producer(address) as producer:
                while waiting:
                    assert producer.send("T", waiting[0]).is_ok
                    waiting.pop(0)
        except (PenstockError, AssertionError):
            assert time.monotonic() < deadline, f"{len(waiting)} are not stored"
            time.sleep(0.5)


@pytest.mark.feature("controller", "rocketmq-5.3")
@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
def test_rocketmqs_brokers_fail_over_under_our_coordinator(java_set: JavaSet) -> None:
    both = java_set.wait(lambda found: found.get("syncStateSet") == [1, 2])
    assert (both["masterId"], both["masterEpoch"]) == (1, 1)
    before, after = [b"before-%d" % n for n in range(10)], [b"after-%d" % n for n in range(10)]
    send_until_stored(java_set.nameserver, before)

    printed = java_set.mqadmin("getSyncStateSet", "-a", java_set.coordinator.address, "-b", NAME)
    assert "#MasterBrokerId\t1" in printed
    assert "#SyncStateSetNums\t2" in printed
    printed = java_set.mqadmin("getControllerMetaData", "-a", java_set.coordinator.address)
    assert f"#ControllerLeaderAddress\t{java_set.coordinator.address}" in printed

    java_set.brokers[1].kill()
    elected = java_set.wait(lambda found: found["masterId"] == 2)
    assert (elected["masterEpoch"], elected["syncStateSet"]) == (2, [2])
    send_until_stored(java_set.nameserver, after)

    java_set.start_broker(1)
    java_set.wait(lambda found: found["syncStateSet"] == [1, 2])
    settled = java_set.status()
    assert (settled["masterId"], settled["masterEpoch"]) == (2, 2), "nobody is elected without need"

    words = ("-a", java_set.coordinator.address, "-bn", NAME, "-c", "DefaultCluster")
    printed = java_set.mqadmin("electMaster", *words, "-b", "1")
    assert java_set.wait(lambda found: found["masterId"] == 1)["masterEpoch"] == 3, printed

    seen: set[bytes] = set()
    deadline = time.monotonic() + 60
    with Consumer(java_set.nameserver, "g", start_from="first") as consumer:
        consumer.subscribe("T")
        while seen != {*before, *after} and time.monotonic() < deadline:
            seen |= {bytes(message.body) for message in consumer.poll(32, 1)}
    assert seen == {*before, *after}

    printed = java_set.mqadmin("cleanBrokerMetadata", *words, "-b", "2")
    assert "2009" in printed, "it lives"
