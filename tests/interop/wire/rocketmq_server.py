"""A real Apache RocketMQ 5.3.3 name server and broker, from its published artefacts, on loopback.

Rule: defaults of the release, except what keeps it small (heap, segment size), quiet (no deletion by the clock) and on
loopback, and except SQL92 filters, which it has but does not serve by default. Both run in processes of their own, as
in production, so that the broker can be restarted alone.

Ownership: one at a time, this machine is small. Never: touches anything outside the directory given.
"""

from __future__ import annotations

from pathlib import Path

from tests.interop.java_release import JavaBuild, prepare_build
from tests.interop.wire.background import Background, free_port, is_listening
from tests.interop.wire.frames import Wire, has_route

SERVER_BUILD = JavaBuild(
    "server-5.3.3",
    "server-5.3",
    (
        "driver",
        "server-5.3",
        "common/src/penstock/interop/Loopback.java",
        "rocketmq-5.3/src/penstock/interop/LoopbackHaService.java",
    ),
    resources="rocketmq-5.3",
)
JVM_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
)


class RocketMQ:
    """The pair of processes. `restart` keeps ports and data."""

    name = "rocketmq-5.3.3"

    def __init__(self, directory: Path) -> None:
        self._home = prepare_build(SERVER_BUILD)
        self._directory = directory
        self.store = directory / "store"
        name_port, broker_port = free_port(), free_port(neighbours=(-2, 1))
        self.nameserver = f"127.0.0.1:{name_port}"
        self.broker = f"127.0.0.1:{broker_port}"
        self._write_config(name_port, broker_port)
        # One after the other: a broker that finds no name server tries again only after ten seconds.
        self.name_process = self._java("NamesrvStartup", "namesrv", 128)
        self.name_process.wait_until(lambda: is_listening(self.nameserver), "the name server")
        self.broker_process = self._java("BrokerStartup", "broker", 512)
        self._await_broker(1)

    def restart(self, *, crash: bool = False) -> None:
        """Ends the broker and starts it again. Crash or not, it ends by SIGKILL: a clean stop of this broker takes 15
        seconds of waiting, and what it keeps of consumers is on disk within one (see the configuration), except in the
        first ten after its start."""
        boots = self._boots()
        self.broker_process.kill()
        self.broker_process = self._java("BrokerStartup", "broker", 512)
        self._await_broker(boots + 1)

    def stop(self) -> None:
        """Nobody needs the data any more, so nothing is waited for."""
        self.broker_process.kill()
        self.name_process.kill()

    def log_tail(self) -> str:
        return self.broker_process.log_tail()

    def _write_config(self, name_port: int, broker_port: int) -> None:
        (self._directory / "namesrv.conf").write_text(
            f"listenPort={name_port}\nbindAddress=127.0.0.1\nkvConfigPath={self._directory}/kv.json\n"
        )
        settings = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": broker_port,
            "namesrvAddr": self.nameserver,
            "storePathRootDir": self.store,
            "storePathCommitLog": self.store / "commitlog",
            "mappedFileSizeCommitLog": 64 << 20,
            "mappedFileSizeConsumeQueue": 300_000,
            "maxIndexNum": 100_000,
            "maxHashSlotNum": 25_000,
            "flushConsumerOffsetInterval": 1000,
            "enablePropertyFilter": "true",
            "recallMessageEnable": "true",
            "transactionCheckInterval": 1000,
            # More than the three seconds that it keeps marks in memory: younger ones it would ask about although they ended.
            "transactionTimeOut": 4000,
            "deleteWhen": 25,
            "diskMaxUsedSpaceRatio": 95,
        }
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        (self._directory / "broker.conf").write_text(text)

    def _java(self, main: str, module: str, heap_mib: int) -> Background:
        config = self._directory / f"{module}.conf"
        options = [*JVM_OPTIONS, f"-Xmx{heap_mib}m", f"-Duser.home={self._directory}"]
        options += ["-Drocketmq.broker.diskSpaceWarningLevelRatio=0.995"]
        class_path = f"{self._home / 'classes'}:{self._home / 'lib'}/*"
        command = [
            "java",
            *options,
            "-cp",
            class_path,
            f"org.apache.rocketmq.{module}.{main}",
            "-c",
            str(config),
        ]
        environment = {"ROCKETMQ_HOME": str(self._directory), "NAMESRV_ADDR": ""}
        return Background(command, self._directory / f"{module}.log", environment=environment)

    def _boots(self) -> int:
        return self.broker_process.log_path.read_text(errors="replace").count("boot success")

    def _await_broker(self, boots: int) -> None:
        self.broker_process.wait_until(lambda: self._boots() >= boots, "the broker")
        self.broker_process.wait_until(self._is_registered, "the route")

    def _is_registered(self) -> bool:
        """A broker whose first registration came too early for its own list of name servers repeats it after ten
        seconds; a permission that is set, if to the same value, makes it register at once."""
        if has_route(self.nameserver, "TBW102"):
            return True
        with Wire(self.broker) as wire:
            wire.call(25, body=b"brokerPermission=6")
        return has_route(self.nameserver, "TBW102")


def mqadmin_command(directory: Path, main: str) -> list[str]:
    """What starts mqadmin, or another main class beside it; the command's own words come behind."""
    home = prepare_build(SERVER_BUILD)
    options = [*JVM_OPTIONS, "-Xmx256m", f"-Duser.home={directory}"]
    return ["java", *options, "-cp", f"{home / 'classes'}:{home / 'lib'}/*", main]


def client_command(version: str, directory: Path) -> list[str]:
    """What starts the unmodified client of a release as a driver."""
    line = version.rpartition(".")[0]
    build = JavaBuild(f"client-{version}", f"client-{line}", ("driver", "client", f"client-{line}"))
    home = prepare_build(build)
    options = [*JVM_OPTIONS, "-Xmx256m", f"-Duser.home={directory}"]
    # Shares are computed anew every second and not every 20, for topics whose route comes after their consumer.
    options += ["-Drocketmq.client.rebalance.waitInterval=1000", "-Drocketmq.client.rebalance.minInterval=50"]
    return [
        "java",
        *options,
        "-cp",
        f"{home / 'classes'}:{home / 'lib'}/*",
        "penstock.interop.client.ClientTool",
    ]
