"""What a healthy producer notices of peers that ask and do not read: its sends idle and under attack, and memory.

    python -m benchmarks.slow_readers [--tree DIRECTORY] [--attack pulls|scans|polls|tables|mixed] [--seconds 20]

The peers connect first; then each writes its requests and never reads. `--tree` measures another checkout (with its
hot modules compiled) after this one, against which the figures can be compared. Memory is the server's highest
resident set (its pages of files included) and its own highest pages without files, sampled.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.harness import require_compiled
from benchmarks.servers import ROOT, Penstock
from penstock.protocol.command import Command, decode_frame, encode_frame

BORN = str(1_700_000_000_000)
PAUSE_S = 0.005
LARGE = "Large"


def send_frame(topic: str, body: bytes, opaque: int = 0) -> bytes:
    fields = {"a": "healthy", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": BORN, "h": "0"}
    return encode_frame(Command(310, {**fields, "i": "", "j": "0", "k": "false", "m": "false"}, body, opaque))


def pull_frame(opaque: int, offset: int = 0, wait_ms: int = 0, count: int = 32, size: int = 0) -> bytes:
    fields: dict[str, object] = {
        "consumerGroup": "slow",
        "topic": LARGE,
        "queueId": 0,
        "queueOffset": offset,
        "maxMsgNums": count,
        "sysFlag": 6 if wait_ms else 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": wait_ms,
        "subscription": "*",
        "subVersion": 0,
    }
    if size:
        fields["maxMsgBytes"] = size
    return encode_frame(Command(11, {name: str(value) for name, value in fields.items()}, opaque=opaque))


def ask(sock: socket.socket, frame: bytes) -> Command:
    sock.sendall(frame)
    head = receive(sock, 4)
    answer = head + receive(sock, struct.unpack(">i", head)[0])
    return decode_frame(answer, 0, len(answer))


def receive(sock: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = sock.recv(size - len(found))
        if not piece:
            raise ConnectionError("the server closed the connection")
        found += piece
    return bytes(found)


# -- the healthy producer, a process of its own -----------------------------------------------------------------


def healthy(port: int) -> None:
    """Send one message after the other; on each line of input, print the times since the one before."""
    asked = threading.Event()
    ended = threading.Event()

    def listen() -> None:
        for _ in sys.stdin:
            asked.set()
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    times: list[float] = []
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while not ended.is_set():
            began = time.perf_counter()
            answer = ask(sock, send_frame("Healthy", b"x" * 100))
            times.append((time.perf_counter() - began) * 1_000)
            if answer.code:
                raise SystemExit(f"a healthy send was answered with {answer.code}: {answer.remark}")
            if asked.is_set():
                asked.clear()
                ordered = sorted(times)
                shown = {
                    "sends": len(ordered),
                    "p50_ms": ordered[len(ordered) // 2],
                    "p99_ms": ordered[int(len(ordered) * 0.99)],
                    "max_ms": ordered[-1],
                }
                print(json.dumps({name: round(value, 3) for name, value in shown.items()}), flush=True)
                times.clear()
            time.sleep(PAUSE_S)


class Healthy:
    """The process, seen from here."""

    def __init__(self, port: int) -> None:
        command = [sys.executable, "-m", "benchmarks.slow_readers", "--healthy", str(port)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def report(self) -> dict[str, float]:
        """Its sends since the last report."""
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("broken invariant: a process with pipes")
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, float] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process.wait(10)


# -- the attack -------------------------------------------------------------------------------------------------


def requests(attack: str, count: int, end: int) -> bytes:
    """What one peer writes."""
    pulls = [pull_frame(number) for number in range(count)]
    scans = [pull_frame(number, count=65_536, size=8 << 20) for number in range(count)]
    polls = [pull_frame(number, end, 60_000) for number in range(count)]
    tables = [encode_frame(Command((21, 201, 43)[number % 3], opaque=number)) for number in range(count)]
    if attack == "mixed":
        quarter = count // 4
        return b"".join((*pulls[:quarter], *scans[:quarter], *tables[:quarter], *polls[:quarter]))
    return b"".join({"pulls": pulls, "scans": scans, "polls": polls, "tables": tables}[attack])


class PeakMemory:
    """Watches the server's pages without files."""

    def __init__(self, server: Penstock) -> None:
        self.own_mib = self.resident_mib = 0.0
        self._server = server
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            status = self._server.status()
            self.own_mib = max(self.own_mib, int(status["RssAnon"].split()[0]) / 1024)
            self.resident_mib = int(status["VmHWM"].split()[0]) / 1024

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


def measure(folder: Path, tree: Path, attack: str, peers: int, count: int, seconds: float) -> None:
    with Penstock(folder, tree=tree) as server, socket.create_connection(("127.0.0.1", server.port)) as sock:
        for number in range(600 if attack in ("scans", "mixed") else 60):
            ask(sock, send_frame(LARGE, bytes(16_000), number))
        end = int(ask(sock, send_frame(LARGE, bytes(16_000))).fields["queueOffset"]) + 1
        producer = Healthy(server.port)
        time.sleep(2)
        producer.report()
        time.sleep(seconds / 2)
        idle = producer.report()
        memory = PeakMemory(server)
        many = []
        for _ in range(peers):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            one.connect(("127.0.0.1", server.port))
            many.append(one)
        data = requests(attack, count, end)
        for one in many:
            one.settimeout(30)
            one.sendall(data)
        if attack in ("polls", "mixed"):
            ask(sock, send_frame(LARGE, bytes(16_000)))
        time.sleep(seconds)
        attacked = producer.report()
        memory.end()
        log = server.log()
        producer.close()
        for one in many:
            one.close()
    closed = [line for line in log.splitlines() if "closing the connection" in line]
    print(f"{tree}\n  {peers} peers with {count} {attack} each")
    print(
        f"  idle      {idle}\n  attacked  {attacked}  ({attacked['p99_ms'] / idle['p99_ms']:.1f} x the idle p99)"
    )
    print(f"  memory    {memory.resident_mib:.0f} MiB resident, {memory.own_mib:.0f} MiB without files")
    print(f"  closed    {len(closed)} lines in the log{': ' + closed[0] if closed else ''}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, help="another checkout to measure")
    parser.add_argument("--attack", choices=("pulls", "scans", "polls", "tables", "mixed"), default="pulls")
    parser.add_argument("--peers", type=int, default=300)
    parser.add_argument("--requests", type=int, default=200, help="of each peer")
    parser.add_argument("--seconds", type=float, default=20.0, help="under attack; half of it idle before")
    parser.add_argument("--healthy", type=int, metavar="PORT", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.healthy:
        healthy(given.healthy)
        return
    require_compiled()
    for tree in (ROOT, *([given.tree] if given.tree else [])):
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder), tree, given.attack, given.peers, given.requests, given.seconds)


if __name__ == "__main__":
    main()
