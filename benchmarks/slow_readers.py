"""What a healthy client notices of peers that ask and do not read: its requests idle and under attack, and memory.

    python -m benchmarks.slow_readers [--tree DIRECTORY] [--attack NAME|all] [--seconds 20]

The peers connect first; then each writes its requests, of floods again and again, and never reads, or a byte a
second. The healthy client sends messages, or asks the name server or the coordinator. `--tree` measures another
checkout (with its hot modules compiled) after this one, against which the figures can be compared. Memory is the
server's highest resident set (its pages of files included) and its own highest pages without files, sampled.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import select
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import require_compiled
from benchmarks.servers import ROOT, Coordinator, Penstock
from penstock.protocol.command import ONEWAY_FLAG, Command, decode_frame, encode_frame

BORN = str(1_700_000_000_000)
PAUSE_S = 0.005
LARGE = "Large"


def send_frame(
    topic: str, body: bytes, opaque: int = 0, properties: str = "", *, is_oneway: bool = False
) -> bytes:
    fields = {"a": "healthy", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": BORN, "h": "0"}
    fields |= {"i": properties, "j": "0", "k": "false", "m": "false"}
    return encode_frame(Command(310, fields, body, opaque, flag=ONEWAY_FLAG if is_oneway else 0))


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


# -- the healthy client, a process of its own -------------------------------------------------------------------


def probe(server: str) -> bytes:
    """What the healthy client asks of a server."""
    if server == "nameserver":
        return encode_frame(Command(105, {"topic": LARGE}))
    if server == "coordinator":
        return encode_frame(Command(1005))
    return send_frame("Healthy", b"x" * 100)


def healthy(server: str, port: int) -> None:
    """Ask one thing after the other; on each line of input, print the times since the one before."""
    asked = threading.Event()
    ended = threading.Event()

    def listen() -> None:
        for _ in sys.stdin:
            asked.set()
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    times: list[float] = []
    frame = probe(server)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while not ended.is_set():
            began = time.perf_counter()
            answer = ask(sock, frame)
            times.append((time.perf_counter() - began) * 1_000)
            if answer.code:
                raise SystemExit(f"a healthy request was answered with {answer.code}: {answer.remark}")
            if asked.is_set():
                asked.clear()
                ordered = sorted(times)
                shown = {
                    "requests": len(ordered),
                    "p50_ms": ordered[len(ordered) // 2],
                    "p99_ms": ordered[int(len(ordered) * 0.99)],
                    "max_ms": ordered[-1],
                }
                print(json.dumps({name: round(value, 3) for name, value in shown.items()}), flush=True)
                times.clear()
            time.sleep(PAUSE_S)


class Healthy:
    """The process, seen from here."""

    def __init__(self, server: str, port: int) -> None:
        command = [sys.executable, "-m", "benchmarks.slow_readers", "--healthy", server, str(port)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def report(self) -> dict[str, float]:
        """Its requests since the last report."""
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


# -- the attacks ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attack:
    """`frames(peer, count, end)`: what one peer writes; `end` is the end of the queue of large messages."""

    frames: Callable[[int, int, int], list[bytes]]
    peers: int = 300
    count: int = 200
    server: str = "broker"
    # Written again and again, as fast as the server takes it.
    is_flood: bool = False
    # Bytes that each peer reads in a second.
    reads: int = 0


def pulls(peer: int, count: int, end: int) -> list[bytes]:
    return [pull_frame(number) for number in range(count)]


def scans(peer: int, count: int, end: int) -> list[bytes]:
    return [pull_frame(number, count=65_536, size=8 << 20) for number in range(count)]


def polls(peer: int, count: int, end: int) -> list[bytes]:
    return [pull_frame(number, end, 60_000) for number in range(count)]


def tables(peer: int, count: int, end: int) -> list[bytes]:
    return [encode_frame(Command((21, 201, 43)[number % 3], opaque=number)) for number in range(count)]


def sends(peer: int, count: int, end: int) -> list[bytes]:
    return [send_frame("Flood", b"x" * 100, number) for number in range(count)]


def oneway(peer: int, count: int, end: int) -> list[bytes]:
    """Half of the peers send and want no answer, half pull."""
    if peer % 2:
        return pulls(peer, count, end)
    return [send_frame("Flood", b"x" * 100, is_oneway=True) for _ in range(count)]


def keys(peer: int, count: int, end: int) -> list[bytes]:
    query = {"topic": LARGE, "key": "k", "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    return [encode_frame(Command(12, query, opaque=number)) for number in range(count)]


def heartbeats(peer: int, count: int, end: int) -> list[bytes]:
    """Bodies of almost a mebibyte: 200 groups, each with 20 subscriptions."""
    groups = [
        {
            "groupName": f"group-{peer % 10}-{group}",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [
                {
                    "topic": f"topic-{topic}",
                    "subString": "*",
                    "tagsSet": [],
                    "codeSet": [],
                    "subVersion": 1_700_000_000_000 + topic,
                    "expressionType": "TAG",
                    "classFilterMode": False,
                    "filterClassSource": "",
                }
                for topic in range(20)
            ],
            "unitMode": False,
        }
        for group in range(200)
    ]
    body = {"clientID": f"client-{peer}", "producerDataSet": [], "consumerDataSet": groups}
    data = json.dumps(body).encode()
    return [encode_frame(Command(34, {}, data, number)) for number in range(count)]


def routes(peer: int, count: int, end: int) -> list[bytes]:
    """Routes, and now and then the list of all topics, of brokers and of the configuration."""
    codes = (105, 105, 105, 206, 106, 318)
    return [
        encode_frame(Command(codes[number % 6], {"topic": LARGE} if number % 6 < 3 else {}, opaque=number))
        for number in range(count)
    ]


def questions(peer: int, count: int, end: int) -> list[bytes]:
    """Of a coordinator: who leads, members of a set, its configuration."""
    fields = {"brokerName": "broker-a", "clusterName": "c", "brokerAddress": "127.0.0.1:1", "brokerId": "1"}
    return [
        encode_frame(Command((1005, 1004, 1010)[number % 3], fields, opaque=number))
        for number in range(count)
    ]


def mixed(peer: int, count: int, end: int) -> list[bytes]:
    kinds = (pulls, scans, tables, polls, sends, oneway, keys)
    if peer % 20 == 0:
        return heartbeats(peer, 2, end)
    return kinds[peer % len(kinds)](peer, count, end)


ATTACKS = {
    "pulls": Attack(pulls),
    "scans": Attack(scans),
    "polls": Attack(polls),
    "tables": Attack(tables),
    "trickle": Attack(pulls, reads=1),
    "sends": Attack(sends, is_flood=True),
    "oneway": Attack(oneway, is_flood=True),
    "many": Attack(scans, peers=1_000, count=5),
    "keys": Attack(keys),
    "heartbeats": Attack(heartbeats, peers=50, count=20, is_flood=True),
    "held": Attack(polls, peers=1_000, count=10),
    "routes": Attack(routes, count=2_000, server="nameserver", is_flood=True),
    "coordinator": Attack(questions, count=2_000, server="coordinator", is_flood=True),
    "mixed": Attack(mixed, peers=700, is_flood=True),
}


class Crowd:
    """The connections of an attack: opened first, then each writes what it can."""

    def __init__(self, attack: Attack, port: int, peers: int, count: int, end: int) -> None:
        self._attack = attack
        self._selector = selectors.DefaultSelector()
        self._left: dict[socket.socket, tuple[bytes, int]] = {}
        self._ended = threading.Event()
        for _ in range(peers):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            one.connect(("127.0.0.1", port))
            one.setblocking(False)
            self._left[one] = (b"", 0)
        shared: dict[int, bytes] = {}
        for peer, one in enumerate(self._left):
            kind = peer % 140
            data = shared.get(kind) or b"".join(attack.frames(peer, count, end))
            shared[kind] = data
            self._left[one] = (data, 0)
            self._selector.register(one, selectors.EVENT_WRITE)
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        read_s = time.monotonic()
        while not self._ended.is_set():
            for key, _ in self._selector.select(0.02):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                data, at = self._left[one]
                try:
                    at += one.send(memoryview(data)[at : at + 65_536])
                except BlockingIOError:
                    continue
                except OSError:
                    self._selector.unregister(one)
                    continue
                if at == len(data):
                    at = 0
                    if not self._attack.is_flood:
                        self._selector.unregister(one)
                self._left[one] = (data, at)
            if self._attack.reads and time.monotonic() - read_s >= 1:
                read_s = time.monotonic()
                for one in self._left:
                    with contextlib.suppress(OSError):
                        one.recv(self._attack.reads)

    def closed(self) -> int:
        """How many of them the server has closed."""
        found = 0
        for one in self._left:
            poll = select.poll()
            poll.register(one, select.POLLERR | select.POLLHUP | select.POLLRDHUP)
            found += bool(poll.poll(0))
        return found

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        for one in self._left:
            one.close()


class PeakMemory:
    """Watches the server's pages without files."""

    def __init__(self, server: Penstock | Coordinator) -> None:
        self.own_mib = self.resident_mib = 0.0
        self._server = server
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def now_mib(self) -> float:
        return int(self._server.status()["RssAnon"].split()[0]) / 1024

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            self.own_mib = max(self.own_mib, self.now_mib())
            self.resident_mib = int(self._server.status()["VmHWM"].split()[0]) / 1024

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


def measure(folder: Path, tree: Path, name: str, peers: int, count: int, seconds: float) -> None:
    attack = ATTACKS[name]
    kind = Coordinator if attack.server == "coordinator" else Penstock
    with kind(folder, tree=tree) as server:
        end, port = 0, server.port
        if isinstance(server, Penstock):
            end = fill(server.port, 600 if name in ("scans", "many", "mixed") else 60)
            port = server.name_port if attack.server == "nameserver" else port
        client = Healthy(attack.server, port)
        time.sleep(2)
        client.report()
        time.sleep(seconds / 2)
        idle = client.report()
        memory = PeakMemory(server)
        base = memory.now_mib()
        crowd = Crowd(attack, port, peers or attack.peers, count or attack.count, end)
        ended = time.monotonic() + seconds
        while time.monotonic() < ended:
            time.sleep(1)
            if name in ("polls", "held", "mixed"):
                fill(server.port, 1)
        attacked = client.report()
        memory.end()
        log, closed = server.log(), crowd.closed()
        client.close()
        crowd.close()
    lines = [line for line in log.splitlines() if "closing the connection" in line]
    print(f"{tree}  {name}: {peers or attack.peers} peers, {count or attack.count} requests each")
    print(
        f"  idle      {idle}\n  attacked  {attacked}  ({attacked['p99_ms'] / idle['p99_ms']:.1f} x the idle p99)"
    )
    print(
        f"  memory    {memory.resident_mib:.0f} MiB resident, {memory.own_mib:.0f} MiB without files, "
        f"{memory.own_mib - base:.0f} more than before"
    )
    print(
        f"  closed    {closed}, {len(lines)} lines in the log{': ' + lines[-1] if lines else ''}", flush=True
    )


def fill(port: int, count: int) -> int:
    """Large messages with a key; the end of their queue."""
    end = 0
    with socket.create_connection(("127.0.0.1", port)) as sock:
        for number in range(count):
            answer = ask(sock, send_frame(LARGE, bytes(16_000), number, "KEYS\x01k\x02"))
            end = int(answer.fields["queueOffset"]) + 1
    return end


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, help="another checkout to measure")
    parser.add_argument("--attack", choices=(*ATTACKS, "all"), default="pulls")
    parser.add_argument("--peers", type=int, default=0)
    parser.add_argument("--requests", type=int, default=0, help="of each peer")
    parser.add_argument("--seconds", type=float, default=20.0, help="under attack; half of it idle before")
    parser.add_argument("--healthy", nargs=2, metavar=("SERVER", "PORT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.healthy:
        healthy(given.healthy[0], int(given.healthy[1]))
        return
    require_compiled()
    for name in ATTACKS if given.attack == "all" else (given.attack,):
        for tree in (ROOT, *([given.tree] if given.tree else [])):
            with tempfile.TemporaryDirectory() as folder:
                measure(Path(folder), tree, name, given.peers, given.requests, given.seconds)


if __name__ == "__main__":
    main()
