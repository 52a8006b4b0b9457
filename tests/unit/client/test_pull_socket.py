"""The sockets that scans pull through, against a peer that answers as the test wants."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from penstock.client import pull_socket
from penstock.client.pull_socket import Buffers, PullSockets
from penstock.errors import (
    CallTimeoutError,
    ClientClosedError,
    ConnectError,
    ConnectionLostError,
    FrameError,
)
from penstock.protocol.command import Command, encode_frame
from tests.waiting import wait_until


class Peer:
    """Accepts connections and leaves what is said on them to the test."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.accepted: list[socket.socket] = []

    def accept(self) -> socket.socket:
        self.listener.settimeout(5)
        sock, _ = self.listener.accept()
        self.accepted.append(sock)
        return sock

    def close(self) -> None:
        for sock in (*self.accepted, self.listener):
            sock.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.close()


@pytest.fixture
def sockets() -> Iterator[PullSockets]:
    made = PullSockets()
    yield made
    made.close()


def request() -> Command:
    return Command(11, {"topic": "T"})


def answer(opaque: int, body: bytes) -> bytes:
    made = request().answer(0, "FOUND", {"nextBeginOffset": "1"}, body)
    made.opaque = opaque
    return encode_frame(made)


def later(action, *arguments) -> threading.Timer:
    timer = threading.Timer(0.15, action, arguments)
    timer.start()
    return timer


def test_answers_are_had_in_any_order(peer, sockets):
    used = sockets.borrow(peer.address)
    sock = peer.accept()
    first, second, third = (used.ask(request()) for _ in range(3))
    sock.sendall(answer(third, b"3") + answer(first, b"1" * 70_000) + answer(second, b"2"))
    assert not used.is_quiet
    for opaque, body in ((first, b"1" * 70_000), (second, b"2"), (third, b"3")):
        command, size = used.head(opaque)
        assert size == len(body)
        assert used.body(command).body == body
    assert used.is_quiet


def test_the_head_is_there_before_the_body(peer, sockets):
    used = sockets.borrow(peer.address)
    sock = peer.accept()
    whole = answer(used.ask(request()), b"x" * 1000)
    sock.sendall(whole[:-1000])
    command, size = used.head(1)
    assert (command.fields["nextBeginOffset"], size) == ("1", 1000)
    sock.sendall(whole[-1000:])
    assert used.body(command).body == b"x" * 1000


def test_answers_that_nobody_wants_are_passed_over(peer, sockets):
    used = sockets.borrow(peer.address)
    sock = peer.accept()
    first, second, third = (used.ask(request()) for _ in range(3))
    sock.sendall(answer(first, b"1") + answer(second, b"2") + answer(99, b"?") + encode_frame(request()))
    used.forget(first)
    command, _ = used.head(second)
    assert used.body(command).body == b"2"
    used.forget(third)
    assert used.is_quiet
    sockets.give_back(used)
    again = sockets.borrow(peer.address)
    assert again is used
    sock.sendall(answer(third, b"late") + answer(again.ask(request()), b"4"))
    assert again.body(again.head(4)[0]).body == b"4"


def test_a_silent_peer_is_given_up_and_a_slow_one_is_not(peer, sockets, monkeypatch):
    monkeypatch.setattr(pull_socket, "SILENT_S", 1.0)
    used = sockets.borrow(peer.address)
    sock = peer.accept()
    whole = answer(used.ask(request()), b"slow")

    def trickle() -> None:
        for at in range(0, len(whole), -(-len(whole) // 8)):
            time.sleep(0.2)
            sock.sendall(whole[at : at + -(-len(whole) // 8)])

    thread = threading.Thread(target=trickle)
    thread.start()
    started = time.monotonic()
    assert used.body(used.head(1)[0]).body == b"slow"
    assert time.monotonic() - started > 1.0
    thread.join()
    used.ask(request())
    with pytest.raises(CallTimeoutError, match=r"did not answer in time"):
        used.head(2)


@pytest.mark.abuse("A1")
@pytest.mark.parametrize(
    "frame",
    [
        b"\x7f\xff\xff\xff" + b"\0\0\0\x10" + b"x" * 16,  # larger than any limit
        b"\xff\xff\xff\xff" + b"\0\0\0\x10" + b"x" * 16,  # negative
        b"\0\0\0\x08" + b"\0\0\xff\xff" + b"x" * 16,  # the header longer than its frame
        b"\0\0\0\x08" + b"\0\0\0\0" + b"x" * 16,  # no header
        b"\0\0\0\x14" + b"\0\0\0\x10" + b"{" * 16,  # a header that is none
    ],
)
def test_frames_that_make_no_sense_are_refused(peer, sockets, frame):
    used = sockets.borrow(peer.address)
    sock = peer.accept()
    opaque = used.ask(request())
    sock.sendall(frame)
    with pytest.raises(FrameError):
        used.head(opaque)


@pytest.mark.parametrize("sent", [0, 5, 60])
def test_a_connection_that_ends_in_the_middle_is_lost(peer, sockets, sent):
    used = sockets.borrow(peer.address)
    sock = peer.accept()
    sock.sendall(answer(used.ask(request()), b"body")[:sent])
    sock.close()
    with pytest.raises(ConnectionLostError):
        used.body(used.head(1)[0])


def test_connections_are_used_again_unless_something_is_to_come(peer, sockets):
    first = sockets.borrow(peer.address)
    other = sockets.borrow(peer.address)
    assert first is not other
    sockets.give_back(first)
    assert sockets.borrow(peer.address) is first
    first.ask(request())
    sockets.give_back(first)
    with pytest.raises(ConnectionLostError):
        first.ask(request())
    assert sockets.borrow(peer.address) is not first


def test_connections_that_the_peer_ended_are_not_handed_out(peer, sockets):
    kept = [sockets.borrow(peer.address) for _ in range(3)]
    for _ in kept:
        peer.accept()
    for used in kept:
        sockets.give_back(used)
    for sock in peer.accepted[:2]:
        sock.close()
    wait_until(lambda: sum(used.is_alive for used in kept) == 1)
    assert sockets.borrow(peer.address) is kept[2]
    assert sockets.borrow(peer.address) not in kept


def test_one_that_fails_takes_the_idle_ones_of_its_address_along(peer, sockets):
    other = Peer()
    try:
        used, *idle = (sockets.borrow(peer.address) for _ in range(3))
        elsewhere = sockets.borrow(other.address)
        for one in (*idle, elsewhere):
            sockets.give_back(one)
        sockets.failed(used)
        for one in (used, *idle):
            with pytest.raises(ConnectionLostError):
                one.ask(request())
        assert sockets.borrow(other.address) is elsewhere
        assert sockets.borrow(peer.address) not in (used, *idle)
    finally:
        other.close()


def test_an_answer_that_makes_no_sense_is_a_lost_connection(peer, sockets):
    def serve() -> None:
        sock = peer.accept()
        sock.recv(4096)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(ConnectionLostError, match=r"answers nonsense"):
        sockets.call(peer.address, request())
    thread.join()


def test_one_call_over_one_connection(peer, sockets):
    def serve() -> None:
        sock = peer.accept()
        sock.recv(4096)
        sock.sendall(answer(1, b"one"))
        sock.recv(4096)
        sock.close()

    thread = threading.Thread(target=serve)
    thread.start()
    assert sockets.call(peer.address, request()).body == b"one"
    with pytest.raises(ConnectionLostError):
        sockets.call(peer.address, request())
    thread.join()
    assert len(peer.accepted) == 1


def test_closing_tells_who_waits(peer, sockets):
    used = sockets.borrow(peer.address)
    opaque = used.ask(request())
    timer = later(sockets.close)
    with pytest.raises(ConnectionLostError):
        used.head(opaque)
    timer.join()
    with pytest.raises(ClientClosedError):
        sockets.borrow(peer.address)
    sockets.give_back(used)
    with pytest.raises(ClientClosedError):
        sockets.borrow(peer.address)


def test_nobody_is_there(sockets):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectError, match=r"cannot connect to 127.0.0.1"):
        sockets.borrow(f"127.0.0.1:{port}")


def test_buffers_come_back_once_nobody_looks_at_them():
    buffers = Buffers()
    taken = buffers.take(100)
    view = memoryview(taken)[:100]
    held = view[10:20]
    buffers.give_back(view)
    assert buffers.take(100) is not taken
    held.release()
    view = memoryview(taken)[:100]
    buffers.give_back(view)
    assert buffers.take(50) is taken
    buffers.give_back(b"bytes are nobody's")
