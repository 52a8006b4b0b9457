"""Real ZooKeeper servers for tests, out of the jars that come with PySpark: one alone, or an ensemble.

    with zookeeper_servers(folder, count=3) as ensemble:
        ensemble.hosts                      # 127.0.0.1:41234,...
        ensemble.leader().kill()            # SIGKILL; .pause() and .resume() are SIGSTOP and SIGCONT

Rules. Only servers that were started here are signalled, by their process id, and all of them end with the
`with`. They listen on loopback, on ports that are reserved until then. A server counts as ready when it says which
role it has: its port is open and `imok` answered earlier.
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
from pathlib import Path

from penstock.errors import PenstockError, install_hint
from penstock.testing.reserved_port import ReservedPort

# What the server needs; without snappy it listens and never serves.
_JARS = ("zookeeper-3", "zookeeper-jute-", "slf4j-api-", "metrics-core-", "snappy-java-")
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# A young JVM that lives for seconds: little heap, no optimising compiler.
# Above twenty ticks, which is what servers grant unless told.
SESSION_MS_MAX = 60_000
_JAVA_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_READY_TIMEOUT_S = 90.0


def why_unavailable() -> str:
    """Why no ZooKeeper can be started here, for a test's skip; empty if one can."""
    if shutil.which("java") is None:
        return "no java on the path"
    try:
        _class_path()
    except PenstockError as error:
        return str(error)
    return ""


class ZooKeeperServer:
    """One server process and all its lives, always at the same address with the same data."""

    def __init__(self, number: int, folder: Path, port: int, members: str, tick_ms: int) -> None:
        self.number = number
        self.port = port
        self.folder = folder / f"server-{number}"
        self._process: subprocess.Popen[bytes] | None = None
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(str(number), encoding="ascii")
        self._config = self.folder / "zoo.cfg"
        self._config.write_text(
            f"tickTime={tick_ms}\ndataDir={data}\nclientPortAddress=127.0.0.1\nclientPort={port}\n"
            "admin.enableServer=false\nmaxClientCnxns=0\n4lw.commands.whitelist=ruok,srvr,mntr\n"
            f"initLimit=20\nsyncLimit=5\nmaxSessionTimeout={SESSION_MS_MAX}\n{members}",
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
        with open(self.folder / "output.log", "ab") as log:
            self._process = subprocess.Popen(line, stdout=log, stderr=log, cwd=self.folder)

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
        return (self.folder / "output.log").read_text(encoding="utf-8", errors="replace")


class ZooKeeperEnsemble:
    """Servers that know each other."""

    def __init__(self, folder: Path, count: int, tick_ms: int) -> None:
        # Per server one for clients, one for the quorum, one for elections.
        self._reserved = [[ReservedPort() for _ in range(3)] for _ in range(count)]
        members = "".join(
            f"server.{number}=127.0.0.1:{quorum.number}:{election.number}\n"
            for number, (_, quorum, election) in enumerate(self._reserved, 1)
        )
        self.servers = [
            ZooKeeperServer(number, folder, client.number, members if count > 1 else "", tick_ms)
            for number, (client, _, _) in enumerate(self._reserved, 1)
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

    def end(self) -> None:
        """Kill all and give their ports back."""
        self.stop()
        for ports in self._reserved:
            for port in ports:
                port.release()

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
    ensemble = ZooKeeperEnsemble(folder, count, tick_ms)
    try:
        ensemble.start()
        yield ensemble
    finally:
        ensemble.end()


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
