"""Reading whole ranges of queues from a real broker: what is on its way, and what happens when it does not come."""

import contextlib
import itertools
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

import penstock
from penstock.client import read_ahead
from penstock.client.pull_socket import PullSocket
from penstock.client.scan import Scan
from penstock.errors import ClientClosedError
from penstock.message.column_answers import unpack
from penstock.remoting import TlsOptions
from penstock.testing import broker
from tests.support.cutting_proxy import CuttingProxy
from tests.support.guarded_node import SECRETS, guarded_node
from tests.unit.client.scans import bodies, fill


@pytest.fixture
def address() -> Iterator[str]:
    with broker() as found:
        yield found


@pytest.fixture
def scan(address) -> Iterator[Scan]:
    with Scan(address, retry_ms=2_000) as found:
        yield found


@pytest.fixture
def asked(monkeypatch) -> list[int]:
    """Offsets of the pulls that were sent, in their order."""
    found: list[int] = []
    ask = PullSocket.ask

    def noted(self, command) -> int:
        found.append(int(command.fields["queueOffset"]))
        return ask(self, command)

    monkeypatch.setattr(PullSocket, "ask", noted)
    return found


def test_the_next_answer_is_asked_for_before_the_last_is_handed_out(scan, address, asked):
    fill(address, "T", 10)
    queue = scan.queues("T")[0]
    reading = scan.read([(queue, 0, 10)], rows=3)
    assert next(reading).next_offset == 3
    assert asked == [0, 3]
    reading.close()
    assert asked == [0, 3]


def test_the_one_behind_the_next_is_asked_for_where_it_will_begin(scan, address, asked, monkeypatch):
    """Once it is known how large rows are, so many are asked for as fit."""
    monkeypatch.setattr(read_ahead, "GUESSED_ROWS_MIN", 10)
    fill(address, "T", 400)
    queue = scan.queues("T")[0]
    answers = list(scan.read([(queue, 0, 400)], size=20_000))
    assert bodies(answers) == [b"%d" % n for n in range(400)]
    assert len(answers) > 3
    begun = [answer.offset for answer in answers]
    assert asked == begun  # none was asked for twice or in vain
    reading = scan.read([(queue, 0, 400)], size=20_000)
    asked.clear()
    next(reading)
    assert asked == begun[:3]  # two more are on their way
    reading.close()


def test_answers_in_columns_are_guessed_by_the_size_of_their_records(scan, address, asked, monkeypatch):
    """They are smaller, and the broker's limits count what is stored."""
    monkeypatch.setattr(read_ahead, "GUESSED_ROWS_MIN", 10)
    monkeypatch.setattr(read_ahead, "COLUMNS_ROWS_MIN", 100)
    fill(address, "T", 12_000)
    queue = scan.queues("T")[0]
    names = ("queue_offset", "body")
    answers = list(scan.read([(queue, 0, 12_000)], size=300_000, columns=names))
    assert {answer.columns for answer in answers[:-1]} == {names}
    found = []
    for answer in answers:
        if answer.columns:
            rows, columns, damaged = unpack(names, answer.data, 12_000)
            ends = memoryview(columns["body"][1][0]).cast("i")
            content = bytes(columns["body"][2][0])
            found += [content[ends[row] : ends[row + 1]] for row in range(rows)]
            assert damaged == []
        else:
            found += bodies([answer])
    assert found == [b"%d" % n for n in range(12_000)]
    assert sum(len(answer.data) for answer in answers) < sum(answer.stored_bytes for answer in answers) / 3
    assert asked == [answer.offset for answer in answers]


def test_who_is_answered_with_records_does_not_ask_for_columns_again(scan, address, monkeypatch):
    """A broker that has none, or that filters, would be asked in vain each time."""
    monkeypatch.setattr(read_ahead, "COLUMNS_ROWS_MIN", 100)
    wanted = []
    ask = PullSocket.ask

    def noted(self, command) -> int:
        wanted.append("columns" in command.fields)
        return ask(self, command)

    monkeypatch.setattr(PullSocket, "ask", noted)
    fill(address, "T", 4_000, tag="A")
    queue = scan.queues("T")[0]
    # A broker that filters answers with records.
    found = bodies(scan.read([(queue, 0, 4_000)], rows=200, tags="A", columns=("body",)))
    assert found == [b"%d" % n for n in range(4_000)]
    assert wanted[0]
    assert sum(wanted) < 4
    wanted.clear()
    assert len(bodies(scan.read([(queue, 0, 99)], columns=("body",)))) == 99
    assert wanted == [False]


def test_memory_serves_again_when_nobody_looks_at_it(scan, address):
    """Also where the caller still holds views of the last answer when it asks for the next."""
    fill(address, "T", 12_000)
    queue = scan.queues("T")[0]
    used, held = [], None
    for answer in scan.read([(queue, 0, 12_000)], size=300_000, columns=("body",), reuse=True):
        held = unpack(answer.columns, answer.data, 12_000) if answer.columns else held
        used.append(answer.data.obj)
    assert held is not None
    assert len(used) > 5
    assert len(set(map(id, used))) <= 3


def test_a_wrong_guess_costs_an_answer_and_no_row(scan, address, asked, monkeypatch):
    monkeypatch.setattr(read_ahead, "GUESSED_ROWS_MIN", 10)
    monkeypatch.setattr(read_ahead, "ROOM_USED", 3)
    fill(address, "T", 2_000)
    queue = scan.queues("T")[0]
    found = bodies(scan.read([(queue, 0, 2_000)], size=20_000))
    assert found == [b"%d" % n for n in range(2_000)]
    assert sum(1 for one, other in itertools.pairwise(asked) if other < one) == read_ahead.WRONG_MAX


def test_ranges_of_one_queue_and_small_ranges(scan, address, monkeypatch):
    monkeypatch.setattr(read_ahead, "GUESSED_ROWS_MIN", 4)
    fill(address, "T", 600, queues=30)
    queues = scan.queues("T")
    ranges = [(queue, start, start + 5) for start in (0, 10, 5, 15) for queue in queues]
    found = bodies(scan.read(ranges, rows=12, size=2_000))
    wanted = [
        b"%d" % (offset * 30 + number)
        for start in (0, 10, 5, 15)
        for number in range(30)
        for offset in range(start, start + 5)
    ]
    assert found == wanted


def check_read_through(proxy, scan, topic, after_bytes) -> None:
    """A thousand messages come once and in order, though the connection is cut on the way."""
    queue = scan.queues(topic)[0]
    proxy.forward_to(queue.address)
    through = replace(queue, address=proxy.address)
    found = []
    for number, answer in enumerate(scan.read([(through, 0, 1_000)], size=20_000)):
        found += bodies([answer])
        if number in (0, 3):
            proxy.reset(after_bytes)
    assert found == [b"%d" % n for n in range(1_000)]
    assert proxy.cut >= 1


@pytest.mark.fault("F3")
@pytest.mark.parametrize("after_bytes", [1, 60, 500, 5_000, 30_000])
def test_a_connection_that_breaks_off_loses_and_repeats_nothing(address, after_bytes, monkeypatch):
    """Whatever was on its way, and however much of it had come."""
    monkeypatch.setattr(read_ahead, "GUESSED_ROWS_MIN", 10)
    fill(address, "T", 1_000)
    with CuttingProxy() as proxy, Scan(address, retry_ms=5_000) as scan:
        check_read_through(proxy, scan, "T", after_bytes)


@pytest.mark.fault("F3")
@pytest.mark.parametrize("after_bytes", [1, 60, 5_000, 30_000])
def test_the_same_under_tls_and_signatures(tmp_path, after_bytes, monkeypatch):
    """Records of TLS are received in parts, and requests are signed in the loop."""
    monkeypatch.setattr(read_ahead, "GUESSED_ROWS_MIN", 10)
    with guarded_node(tmp_path) as node, CuttingProxy() as proxy:
        node.admin.create_topic("in-1", 1)
        node.send("in-1", [b"%d" % n for n in range(1_000)])
        keys = {"access_key": "spark", "secret_key": SECRETS["spark"]}
        with Scan(node.address, retry_ms=5_000, tls=TlsOptions(trusted=node.certificate), **keys) as scan:
            check_read_through(proxy, scan, "in-1", after_bytes)


def test_a_connection_that_went_stale_is_replaced(scan, address):
    """Brokers close what is idle for long; the next reader finds out when it asks."""
    fill(address, "T", 30)
    queue = scan.queues("T")[0]
    for _ in range(3):
        assert len(bodies(scan.read([(queue, 0, 30)], rows=10))) == 30
        (idle,) = scan._scan.sockets.idle[queue.address]
        idle.wire.is_alive = lambda: True  # as far as this side knows, after a router forgot it
        idle.wire._sock.shutdown(socket.SHUT_RDWR)


@pytest.mark.fault("F3")
def test_somebody_else_at_the_brokers_old_address(scan, address):
    """An address that was given to another service: the name server knows better."""
    fill(address, "T", 40)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def serve() -> None:
            listener.settimeout(0.05)
            while not stop.is_set():
                with contextlib.suppress(TimeoutError):
                    peer, _ = listener.accept()
                    with peer:
                        peer.recv(4096)
                        peer.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            port = listener.getsockname()[1]
            queue = replace(scan.queues("T")[0], address=f"127.0.0.1:{port}")
            assert len(bodies(scan.read([(queue, 0, 40)], rows=15))) == 40
        finally:
            stop.set()
            thread.join()


def test_a_known_broker_is_read_without_a_name_server(scan, address):
    fill(address, "T", 40)
    queue = scan.queues("T")[0]
    with Scan("127.0.0.1:1", retry_ms=0) as lost:
        assert len(bodies(lost.read([(queue, 0, 40)], rows=15))) == 40


def test_ranges_may_overlap(scan, address):
    fill(address, "T", 100)
    queue = scan.queues("T")[0]
    for place in (queue, replace(queue, address="127.0.0.1:1"), replace(queue, address="")):
        found = bodies(scan.read([(place, 0, 100), (place, 50, 100)], rows=500))
        assert found == [b"%d" % n for n in (*range(100), *range(50, 100))]


def test_a_child_process_leaves_its_parents_connections_alone(scan, address):
    fill(address, "T", 30)
    reading = scan.read([(scan.queues("T")[0], 0, 30)], rows=10)
    next(reading)
    (used,) = scan._scan.sockets.opened
    thread = scan._thread
    thread.is_foreign = True  # as it is after a fork
    try:
        with pytest.raises(penstock.ClientError, match=r"fork"):
            next(reading)
    finally:
        thread.is_foreign = False
    assert used.is_alive


def test_a_reader_of_a_closed_scan_is_told(address):
    fill(address, "T", 30)
    scan = Scan(address)
    reading = scan.read([(scan.queues("T")[0], 0, 30)], rows=10)
    next(reading)
    scan.close()
    with pytest.raises(ClientClosedError):
        list(reading)
