"""Bulk reading, as Spark does it, at a real RocketMQ broker, and the same at Penstock's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from penstock.client import read_ahead
from penstock.client.received import decode_records
from penstock.client.scan import PullStatus, QueueId, Scan
from tests.interop.wire.peer import Peer, Server
from tests.interop.wire.penstock_server import Penstock
from tests.waiting import wait_until

QUEUES = 2
COUNT = 100


@pytest.fixture
def scan(server: Server) -> Iterator[Scan]:
    with Scan(server.nameserver, retry_ms=5_000) as made:
        yield made


@pytest.fixture
def queues(server: Server, scan: Scan) -> list[QueueId]:
    """Queues of a topic with 100 messages each; tag A in the first, B in the second."""
    topic = Peer.fresh("scan")
    with penstock.Admin(server.nameserver) as admin:
        admin.create_topic(topic, QUEUES)
        places = sorted(admin.queues(topic))
    with penstock.Producer(server.nameserver) as producer:
        for future in [
            producer.send_async(topic, b"%d" % n, tag="AB"[n % QUEUES], queue=places[n % QUEUES])
            for n in range(COUNT * QUEUES)
        ]:
            future.result()
    found = scan.queues(topic)
    wait_until(lambda: all(item.max == COUNT for item in scan.ranges(found).values()), "all messages visible")
    return found


def bodies(answers) -> list[bytes]:
    return [message.body for answer in answers if answer.data for message in decode_records(answer.data)]


@pytest.mark.feature("python-clients", "rocketmq-5.3")
def test_everything_is_read_in_order(scan: Scan, queues: list[QueueId]) -> None:
    assert queues[0].topic in scan.topics("scan.*")
    assert list(scan.ranges(queues).values()) == [(0, COUNT)] * QUEUES
    found = bodies(scan.read([(queue, 0, COUNT) for queue in queues]))
    assert found == [b"%d" % (n * QUEUES + q) for q in range(QUEUES) for n in range(COUNT)]
    assert bodies(scan.read([(queues[1], 98, COUNT)])) == [b"197", b"199"]


@pytest.mark.feature("python-clients", "rocketmq-5.3")
def test_rocketmq_answers_with_records_where_penstock_answers_with_columns(
    server: Server, scan: Scan, queues: list[QueueId], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "COLUMNS_ROWS_MIN", 1)
    answers = list(scan.read([(queue, 0, COUNT) for queue in queues], rows=1_000, columns=("body",)))
    assert {bool(answer.columns) for answer in answers if answer.data} == {isinstance(server, Penstock)}
    if isinstance(server, Penstock):
        assert sum(answer.next_offset - answer.offset for answer in answers) == QUEUES * COUNT
    else:
        assert bodies(answers) == [b"%d" % (n * QUEUES + q) for q in range(QUEUES) for n in range(COUNT)]


@pytest.mark.feature("python-clients", "rocketmq-5.3")
def test_times_tags_and_ends(scan: Scan, queues: list[QueueId]) -> None:
    assert scan.offsets_by_time({queues[0]: 0, queues[1]: 2**41}) == {queues[0]: 0, queues[1]: COUNT}
    assert len(bodies(scan.read([(queue, 0, COUNT) for queue in queues], tags="A || C"))) == COUNT
    (skipped,) = scan.read([(queues[0], 0, COUNT)], tags="C")
    assert (skipped.status, skipped.next_offset) == (PullStatus.SKIPPED, COUNT)
    end, behind = scan.read([(queues[0], COUNT, COUNT + 5), (queues[0], COUNT + 20, COUNT + 30)])
    assert (end.status, end.next_offset) == (PullStatus.NOTHING, COUNT)
    assert (behind.status, behind.next_offset) == (PullStatus.MOVED, COUNT)


@pytest.mark.feature("python-clients", "rocketmq-5.3")
def test_progress_shows_as_lag(server: Server, scan: Scan, queues: list[QueueId]) -> None:
    group = Peer.fresh("scan-group")
    scan.commit(group, {queues[0]: COUNT, queues[1]: 40})
    with penstock.Admin(server.nameserver) as admin:
        assert admin.offsets(group, queues[0].topic) == {queues[0].queue: COUNT, queues[1].queue: 40}
        wait_until(lambda: admin.describe_group(group).lag == COUNT - 40, "the lag of the group")
