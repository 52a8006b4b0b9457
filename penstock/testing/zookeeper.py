"""Real ZooKeeper servers for tests, out of the jars that come with PySpark: one alone, or an ensemble.

    with zookeeper_servers(folder, count=3) as ensemble:
        ensemble.hosts                      # 127.0.0.1:41234,...
        ensemble.leader().kill()            # SIGKILL; .pause() and .resume() are SIGSTOP and SIGCONT

Rules. Only servers that were started here are signalled, by their process id, and all of them end with the
`with`. They listen on loopback, on ports that were free when they were chosen; where one was taken meanwhile, others
are tried. A server counts as ready when it says which role it has: its port is open and `imok` answered earlier.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError, install_hint

# What the server needs; without snappy it listens and never serves.
_JARS = ("zookeeper-3", "zookeeper-jute-", "slf4j-api-", "metrics-core-", "snappy-java-")
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# A young JVM that lives for seconds: little heap, no optimising compiler.
_JAVA_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_READY_TIMEOUT_S = 60.0
_START_TRIES = 3


def why_unavailable() -> str:
    """Why no ZooKeeper can be started here, for a test's skip; empty if one can."""
    if shutil.which("java") is None:
        return "no java on the path"
    try:
        _class_path()
    except PenstockError as error:
        return str(error)
    return ""


@dataclass(frozen=True, slots=True)
class _Ports:
    client: int
    quorum: int
    election: int


class ZooKeeperServer:
    """One server process and all its lives, always at the same address with the same data."""

    def __init__(self, number: int, folder: Path, ports: _Ports, members: str, tick_ms: int) -> None:
        self.number = number
        self.port = ports.client
        self._folder = folder / f"server-{number}"
        self._process: subprocess.Popen[bytes] | None = None
        data = self._folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(str(number), encoding="ascii")
        self._config = self._folder / "zoo.cfg"
        self._config.write_text(
            f"tickTime={tick_ms}\ndataDir={data}\nclientPortAddress=127.0.0.1\nclientPort={ports.client}\n"
            "admin.enableServer=false\nmaxClientCnxns=0\n4lw.commands.whitelist=ruok,srvr,mntr\n"
            f"initLimit=20\nsyncLimit=5\n{members}",
            encoding="utf-8",
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "it does not run"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it without waiting for it."""
        assert not self.is_running, "it runs already"
        line = ["java", "-cp", _class_path(), *_JAVA_OPTIONS, _MAIN, str(self._config)]
        with open(self._folder / "output.log", "ab") as log:
            self._process = subprocess.Popen(line, stdout=log, stderr=log, cwd=self._folder)

    def kill(self) -> None:
        """SIGKILL, and gone when this returns."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def mode(self) -> str:
        """`leader`, `follower` or `standalone`; empty while it does not serve."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(b"srvr")
                answer = b""
                while part := connection.recv(8192):
                    answer += part
        except OSError:
            return ""
        for line in answer.decode("utf-8", "replace").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ").strip()
        return ""

    def output(self) -> str:
        return (self._folder / "output.log").read_text(encoding="utf-8", errors="replace")


class ZooKeeperEnsemble:
    """Servers that know each other."""

    def __init__(self, folder: Path, count: int, tick_ms: int) -> None:
        ports = [_Ports(*ports) for ports in _free_ports(count)]
        members = "".join(
            f"server.{number}=127.0.0.1:{port.quorum}:{port.election}\n"
            for number, port in enumerate(ports, 1)
        )
        self.servers = [
            ZooKeeperServer(number, folder, port, members if count > 1 else "", tick_ms)
            for number, port in enumerate(ports, 1)
        ]

    @property
    def hosts(self) -> str:
        """All addresses, as clients are told."""
        return ",".join(server.address for server in self.servers)

    def start(self) -> None:
        """Start those that do not run, and wait until all serve."""
        for server in self.servers:
            if not server.is_running:
                server.start()
        self.wait_serving(len(self.servers))

    def stop(self) -> None:
        for server in self.servers:
            server.kill()

    def wait_serving(self, count: int) -> None:
        """Until so many servers say that they serve."""
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while sum(1 for server in self.servers if server.mode()) < count:
            dead = [server for server in self.servers if not server.is_running]
            if time.monotonic() > deadline or len(self.servers) - len(dead) < count:
                said = "\n".join(
                    f"server {server.number}: {server.output()[-2000:]}" for server in self.servers
                )
                raise PenstockError(f"{count} ZooKeeper servers do not come up", f"they said: {said}")
            time.sleep(0.05)

    def leader(self) -> ZooKeeperServer:
        """The server that leads, or the only one."""
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while time.monotonic() < deadline:
            for server in self.servers:
                if server.is_running and server.mode() in ("leader", "standalone"):
                    return server
            time.sleep(0.05)
        raise PenstockError("no ZooKeeper server leads", "a majority of them must run")

    def followers(self) -> list[ZooKeeperServer]:
        return [server for server in self.servers if server.is_running and server.mode() == "follower"]


@contextmanager
def zookeeper_servers(folder: Path, count: int = 1, *, tick_ms: int = 500) -> Iterator[ZooKeeperEnsemble]:
    """So many servers, serving. The shortest session that they grant is two ticks, the longest twenty."""
    ensemble = _started(folder, count, tick_ms)
    try:
        yield ensemble
    finally:
        ensemble.stop()


def _started(folder: Path, count: int, tick_ms: int) -> ZooKeeperEnsemble:
    for attempt in range(1, _START_TRIES + 1):
        ensemble = ZooKeeperEnsemble(folder / f"attempt-{attempt}", count, tick_ms)
        try:
            ensemble.start()
            return ensemble
        except PenstockError:
            ensemble.stop()
            if attempt == _START_TRIES:
                raise
        except BaseException:
            ensemble.stop()
            raise
    raise AssertionError("not reached")


def end_session(hosts: str, client_id: tuple[int, bytes]) -> None:
    """End somebody else's session as an expiry would: a second client takes it over and closes it."""
    from kazoo.client import KazooClient

    usurper = KazooClient(hosts=hosts, client_id=client_id, timeout=10)
    usurper.start(timeout=30)
    usurper.stop()
    usurper.close()


def _class_path() -> str:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise PenstockError("pyspark is not installed, whose jars hold ZooKeeper", install_hint("spark"))
    jars = Path(spec.origin).parent / "jars"
    found = [next(jars.glob(f"{name}*.jar"), None) for name in _JARS]
    lacking = [name for name, jar in zip(_JARS, found, strict=True) if jar is None]
    if lacking:
        raise PenstockError(f"pyspark's jars lack {', '.join(lacking)}", install_hint("spark"))
    return os.pathsep.join(str(jar) for jar in found)


def _free_ports(count: int) -> list[tuple[int, int, int]]:
    """Three per server, all different: held together until the last one is known."""
    sockets = [socket.socket() for _ in range(3 * count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        ports = [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
    return [(ports[i], ports[i + 1], ports[i + 2]) for i in range(0, len(ports), 3)]
