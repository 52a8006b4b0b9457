"""A cheap client: pre-encoded requests, answers only counted, so that the server is what is measured.

    python -m benchmarks.wire_load HOST PORT FILE --connections 8 --depth 64 --seconds 2

FILE (JSON) says what to send: `hello` once per connection (hex), `hello_ends` (hex, when the greeting is over),
`request` (hex; in it and in `hello` `{n}` is the connection's number), `answer` (hex, what every answer contains
exactly once). One process, one thread, epoll; writes one JSON line with requests, seconds and latency percentiles.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import sys
import time
from pathlib import Path


class Peer:
    """One connection with a fixed number of requests in flight."""

    def __init__(self, address: tuple[str, int], plan: dict[str, str], number: int, depth: int) -> None:
        self.sock = socket.create_connection(address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = bytes.fromhex(plan["request"]).replace(b"{n}", str(number).encode())
        self.runs = [request * i for i in range(depth + 1)]
        self.mark = bytes.fromhex(plan["answer"])
        self.tail = b""
        self.unsent = b""
        self._greet(plan, number)
        self.sock.setblocking(False)

    def _greet(self, plan: dict[str, str], number: int) -> None:
        if plan.get("hello"):
            self.sock.sendall(bytes.fromhex(plan["hello"]).replace(b"{n}", str(number).encode()))
        if plan.get("hello_ends"):
            ends, seen = bytes.fromhex(plan["hello_ends"]), b""
            while ends not in seen:
                seen += self.sock.recv(65536)

    def send(self, count: int) -> None:
        data = self.unsent + self.runs[count]
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        self.unsent = data[sent:]

    def receive(self) -> int:
        """How many answers came; one may be cut by the end of a read."""
        data = self.sock.recv(1 << 18)
        if not data:
            raise ConnectionError("the server closed the connection")
        joined = self.tail + data
        keep = len(self.mark) - 1
        self.tail = joined[-keep:] if keep else b""
        return joined.count(self.mark)


def run(peers: list[Peer], depth: int, seconds: float) -> dict[str, float]:
    poll = select.epoll()
    by_fd = {peer.sock.fileno(): peer for peer in peers}
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    clock = time.perf_counter
    started = clock()
    ends = started + seconds
    sent_at = dict.fromkeys(by_fd, started)
    times: list[float] = []
    done = 0
    for peer in peers:
        peer.send(depth)
    now = started
    while now < ends:
        for fd, _ in poll.poll(1.0):
            peer = by_fd[fd]
            count = peer.receive()
            if not count and not peer.unsent:
                continue
            done += count
            now = clock()
            if depth == 1:
                times.append(now - sent_at[fd])
                sent_at[fd] = now
            peer.send(count)
        now = clock()
    elapsed = clock() - started
    times.sort()
    result = {"requests": done, "seconds": elapsed, "per_second": done / elapsed}
    if times:
        for name, part in (("p50_us", 0.5), ("p99_us", 0.99), ("p999_us", 0.999)):
            result[name] = times[int(len(times) * part)] * 1e6
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--depth", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    plan = json.loads(given.plan.read_text())
    peers = [Peer((given.host, given.port), plan, i, given.depth) for i in range(given.connections)]
    json.dump(run(peers, given.depth, given.seconds), sys.stdout)
    print()


if __name__ == "__main__":
    main()
