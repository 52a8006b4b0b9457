"""A real Kafka to measure against: one node, KRaft, on loopback, from its published artefacts (as in `make interop`).

Rule: defaults of the release, heap included, except what a single node needs (one replica of internal topics) and
what keeps it on loopback and in its directory. It ends with the process that started it, however that ends. `NotHere`
says why there is none: no Java, no Maven, or Maven Central out of reach.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.servers import NotHere, Server, free_port, is_listening

# What bin/kafka-server-start.sh gives the server.
JVM_OPTIONS = ("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
HEAP = "1g"


@dataclass(frozen=True, slots=True)
class Artefacts:
    """What Maven resolved."""

    server_class_path: str
    source_jars: list[Path]
    """Spark's Kafka source, for `spark.jars`."""


def prepare() -> Artefacts:
    """Fetch what is not yet in the cache; NotHere where it cannot be had."""
    from tests.interop import kafka_release
    from tests.interop.java_errors import JavaStoreError, RegistryOutOfReach
    from tests.interop.java_release import missing_tools

    if (reason := missing_tools()) is not None:
        raise NotHere(reason)
    try:
        return Artefacts(kafka_release.server_class_path(), kafka_release.source_jars())
    except RegistryOutOfReach as error:
        raise NotHere(str(error)) from error
    except JavaStoreError as error:
        # A mirror need not have everything; any other failure is ours.
        if "Could not find artifact" not in str(error):
            raise
        raise NotHere(str(error)) from error


class Kafka(Server):
    """Broker and controller in one process. Whoever writes to a topic first makes it, with `queues` partitions."""

    name = "kafka"

    def __init__(self, folder: Path, artefacts: Artefacts, queues: int) -> None:
        super().__init__(folder)
        self._class_path = artefacts.server_class_path
        self._queues = queues
        self._controller_port = free_port()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        from tests.interop.kafka_release import NODE_CLASS

        settings = self._write_settings()
        log = self.folder / "kafka.log"
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        heap = (f"-Xms{HEAP}", f"-Xmx{HEAP}")
        command = ["java", *heap, *JVM_OPTIONS, quiet, "-cp", self._class_path, NODE_CLASS]
        command += [str(settings)]
        with log.open("wb") as out:
            # Its standard input ends with this process, and the node with it.
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT)
        self._processes.append(process)
        self.wait(lambda: is_listening(self.port), log)

    def _write_settings(self) -> Path:
        controller = f"127.0.0.1:{self._controller_port}"
        settings: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.folder / "logs",
            "num.partitions": self._queues,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
        }
        path = self.folder / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return path

    def stop(self) -> None:
        # The end of its input ends it at once; an orderly stop would take seconds that nobody needs.
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        super().stop()
