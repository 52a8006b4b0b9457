"""Servers to measure, each a process of its own on loopback, started and stopped by a `with` block.

RocketMQ comes from its published artefacts (as in `make interop`), Redis and NATS from Debian's packages. One that is
not there raises `NotHere` with the reason: the benchmark says so and goes on with the others.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[1]
READY_S = 60.0
TOPIC = "BenchTopic"
QUEUES = 8


class NotHere(Exception):
    """The server cannot be had on this machine."""


def free_port() -> int:
    """A port that was free a moment ago, with free neighbours for servers that take them."""
    while True:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = int(sock.getsockname()[1])
        if port < 60_000:
            return port


def is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
        return True
    return False


class Server:
    """A process that listens. `started_s` is the time from its start to its first accepted connection."""

    name = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / self.name.replace(" ", "-")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.port = free_port()
        self.started_s = 0.0
        self._processes: list[subprocess.Popen[bytes]] = []

    def spawn(
        self, command: list[str], port: int, environment: dict[str, str] | None = None, cwd: Path = ROOT
    ) -> None:
        """Start a process and wait until its port is open."""
        log = self.folder / f"{len(self._processes)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env={**os.environ, **(environment or {})},
            )
        self._processes.append(process)
        self.wait(lambda: is_listening(port), log)

    def wait(self, ready: Callable[[], bool], log: Path) -> None:
        ends = time.monotonic() + READY_S
        while not ready():
            if self._processes[-1].poll() is not None or time.monotonic() > ends:
                tail = log.read_text(errors="replace")[-2000:]
                self.stop()
                raise NotHere(f"{self.name} did not start: {tail}")
            time.sleep(0.005)

    def start(self) -> None:
        raise NotImplementedError

    def log(self) -> str:
        """What the first process wrote so far."""
        return (self.folder / "0.log").read_text(errors="replace")

    def status(self) -> dict[str, str]:
        """What the kernel says of the first process."""
        lines = Path(f"/proc/{self._processes[0].pid}/status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def stop(self) -> None:
        for process in reversed(self._processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self._processes = []
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def memory_mib(self) -> float:
        """Memory of all its processes that is not a file's, in MiB: what is mapped of files the system takes back."""
        total = 0
        for process in self._processes:
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Anonymous"):
                    total += int(line.split()[1])
        return total / 1024

    @property
    def cpu_s(self) -> float:
        """Processor time of all its processes so far."""
        total = 0.0
        for process in self._processes:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return total

    def __enter__(self) -> Self:
        started = time.perf_counter()
        self.start()
        self.started_s = time.perf_counter() - started
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Penstock(Server):
    """This project: name server and broker in one process."""

    name = "penstock"

    def __init__(self, folder: Path, *, sync: bool = False, tree: Path = ROOT) -> None:
        """`tree` is the checkout whose code runs."""
        self.name = f"penstock {'sync' if sync else 'async'}"
        super().__init__(folder)
        self._sync = sync
        self._tree = tree
        self.name_port = free_port()

    @property
    def nameserver(self) -> str:
        return f"127.0.0.1:{self.name_port}"

    def start(self) -> None:
        flags = ["--data", str(self.folder / "data"), "--port", str(self.port)]
        flags += ["--nameserver-port", str(self.name_port)]
        if self._sync:
            flags += ["--set", "store.flush_mode=sync"]
        self.spawn([sys.executable, "-m", "penstock.cli.main", "up", *flags], self.port, cwd=self._tree)


class Coordinator(Server):
    """This project's coordinator, which keeps its state in a file."""

    name = "coordinator"

    def __init__(self, folder: Path, *, tree: Path = ROOT) -> None:
        """`tree` is the checkout whose code runs."""
        super().__init__(folder)
        self._tree = tree

    def start(self) -> None:
        flags = ["--data", str(self.folder / "data"), "--port", str(self.port)]
        self.spawn(
            [sys.executable, "-m", "penstock.cli.main", "coordinator", *flags], self.port, cwd=self._tree
        )


class RocketMQ(Server):
    """Apache RocketMQ, its defaults, with the heap cut to fit this machine."""

    name = "rocketmq"
    heap_mib = 4096

    def __init__(self, folder: Path, *, sync: bool = False) -> None:
        self.name = f"rocketmq {'sync' if sync else 'async'}"
        super().__init__(folder)
        self._sync = sync
        self.name_port = free_port()

    @property
    def nameserver(self) -> str:
        return f"127.0.0.1:{self.name_port}"

    def start(self) -> None:
        from tests.interop.java_errors import JavaStoreError, RegistryOutOfReach
        from tests.interop.java_release import missing_tools, prepare_build
        from tests.interop.wire.rocketmq_server import SERVER_BUILD

        if (reason := missing_tools()) is not None:
            raise NotHere(reason)
        try:
            home = prepare_build(SERVER_BUILD)
        except (JavaStoreError, RegistryOutOfReach) as error:
            raise NotHere(str(error)) from error
        store = self.folder / "store"
        settings: dict[str, object] = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": self.port,
            "namesrvAddr": self.nameserver,
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            "flushDiskType": "SYNC_FLUSH" if self._sync else "ASYNC_FLUSH",
            "diskMaxUsedSpaceRatio": 95,
        }
        (self.folder / "broker.conf").write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
        (self.folder / "namesrv.conf").write_text(
            f"listenPort={self.name_port}\nbindAddress=127.0.0.1\nkvConfigPath={self.folder}/kv.json\n"
        )
        opens = [
            f"--add-opens=java.base/{name}=ALL-UNNAMED"
            for name in ("java.nio", "sun.nio.ch", "jdk.internal.ref")
        ]
        class_path = f"{home / 'classes'}:{home / 'lib'}/*"
        java = ["java", *opens, "-cp", class_path, f"-Duser.home={self.folder}"]
        java += ["-Drocketmq.broker.diskSpaceWarningLevelRatio=0.995"]
        environment = {"ROCKETMQ_HOME": str(self.folder), "NAMESRV_ADDR": ""}
        names = [
            "-Xmx512m",
            "org.apache.rocketmq.namesrv.NamesrvStartup",
            "-c",
            str(self.folder / "namesrv.conf"),
        ]
        self.spawn([*java, *names], self.name_port, environment)
        heap = [
            f"-Xms{self.heap_mib}m",
            f"-Xmx{self.heap_mib}m",
            "-XX:MaxDirectMemorySize=4g",
            "-XX:+UseG1GC",
        ]
        broker = [*heap, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(self.folder / "broker.conf")]
        self.spawn([*java, *broker], self.port, environment)
        log = self.folder / "1.log"
        self.wait(lambda: "boot success" in log.read_text(errors="replace"), log)


class Redis(Server):
    """Redis Streams: an append-only file, no snapshots."""

    name = "redis"

    def __init__(self, folder: Path, *, sync: bool = False) -> None:
        self.name = f"redis {'always' if sync else 'everysec'}"
        super().__init__(folder)
        self._fsync = "always" if sync else "everysec"

    def start(self) -> None:
        binary = shutil.which("redis-server")
        if binary is None:
            raise NotHere("no redis-server on the path: apt-get install redis-server")
        flags = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", ""]
        flags += ["--appendonly", "yes", "--appendfsync", self._fsync, "--daemonize", "no"]
        self.spawn([binary, *flags], self.port)


class Nats(Server):
    """NATS JetStream with one file stream."""

    name = "nats"

    def start(self) -> None:
        binary = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")
        if binary is None:
            raise NotHere("no nats-server on the path: apt-get install nats-server")
        self.spawn(
            [binary, "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.folder)], self.port
        )
        with socket.create_connection(("127.0.0.1", self.port)) as sock:
            body = b'{"name":"bench","subjects":["bench.*"],"storage":"file","retention":"limits"}'
            sock.sendall(b'CONNECT {"verbose":false}\r\nSUB r 1\r\n')
            sock.sendall(b"PUB $JS.API.STREAM.CREATE.bench r %d\r\n%s\r\n" % (len(body), body))
            seen = b""
            while b"stream_create_response" not in seen:
                seen += sock.recv(65536)


# -- what to send ----------------------------------------------------------------------------------------------


def frame(header: bytes, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def send_plan(body_size: int) -> dict[str, str]:
    """A Java client's SEND_MESSAGE_V2; each connection has a queue of its own."""
    properties = (
        "UNIQ_KEY\\u00017F0000010BAD18B4AAC20000{n}0001\\u0002WAIT\\u0001true\\u0002TAGS\\u0001TagA\\u0002"
    )
    header = (
        '{"code":310,"extFields":{"a":"bench","b":"' + TOPIC + '","c":"TBW102","d":"8","e":"{n}","f":"0",'
        '"g":"1700000000000","h":"0","i":"'
        + properties
        + '","j":"0","k":"false","m":"false","n":"broker-a"},'
        '"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":479}'
    ).encode()
    # `{n}` becomes one digit: three characters less in two places.
    body = bytes(range(32, 127)) * (body_size // 95 + 1)
    made = frame(header, body[:body_size])
    size = int.from_bytes(made[:4], "big") - 4
    head = int.from_bytes(made[4:8], "big") - 4
    return {
        "request": (struct.pack(">ii", size, head) + made[8:]).hex(),
        "answer": b'"queueOffset"'.hex(),
    }


def redis_plan(body_size: int) -> dict[str, str]:
    body = b"x" * body_size
    parts = (b"XADD", b"bench{n}", b"*", b"b", body)
    request = b"*5\r\n" + b"".join(
        b"$%d\r\n%s\r\n" % (len(part.replace(b"{n}", b"0")), part) for part in parts
    )
    return {"request": request.hex(), "answer": b"-".hex()}


def nats_plan(body_size: int) -> dict[str, str]:
    return {
        "hello": b'CONNECT {"verbose":false}\r\nSUB r.{n} 1\r\nPING\r\n'.hex(),
        "hello_ends": b"PONG\r\n".hex(),
        "request": (b"PUB bench.{n} r.{n} %d\r\n" % body_size + b"x" * body_size + b"\r\n").hex(),
        "answer": b'"seq":'.hex(),
    }


@contextlib.contextmanager
def running(*servers: Server) -> Iterator[list[Server]]:
    """Those of the servers that can be had, all running."""
    up: list[Server] = []
    try:
        for server in servers:
            try:
                server.__enter__()
            except NotHere as reason:
                print(f"-- {server.name} is left out: {reason}", flush=True)
                continue
            up.append(server)
        yield up
    finally:
        for server in up:
            server.stop()
