"""The broker is killed under a scan that lives on: it waits, and has every acknowledged message once, in order."""

import pytest

import penstock
from penstock.client.received import decode_records
from penstock.client.scan import Scan
from penstock.message.column_answers import unpack
from tests.support.server_processes import cluster
from tests.waiting import PATIENT_SENDS

TOPIC, QUEUES, COUNT = "orders", 3, 12_000


def bodies(answer) -> list[bytes]:
    """Of an answer in either form."""
    if not answer.columns:
        return [message.body for message in decode_records(answer.data)]
    rows, found, _ = unpack(answer.columns, answer.data, COUNT)
    ends, content = found["body"][1][0].cast("i"), bytes(found["body"][2][0])
    return [content[ends[row] : ends[row + 1]] for row in range(rows)]


@pytest.mark.parametrize("columns", [(), ("body",)], ids=["records", "columns"])
@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
def test_a_scan_outlives_kills_of_its_broker(tmp_path, columns):
    with cluster(tmp_path) as (names, node):
        with penstock.Admin(names.address) as admin:
            admin.create_topic(TOPIC, QUEUES)
        places = [penstock.MessageQueue(TOPIC, "broker-a", number) for number in range(QUEUES)]
        with penstock.Producer(names.address, **PATIENT_SENDS) as producer:
            sent = [producer.send_async(TOPIC, b"%d" % n, queue=places[n % QUEUES]) for n in range(COUNT)]
            assert all(future.result().is_ok for future in sent)
        found: list[bytes] = []
        forms = set()
        with Scan(names.address, retry_ms=30_000) as scan:
            ranges = scan.ranges(scan.queues(TOPIC))
            wanted = [(queue, item.min, item.max) for queue, item in ranges.items()]
            for number, answer in enumerate(scan.read(wanted, size=300_000, columns=columns)):
                found += bodies(answer)
                forms.add(answer.columns)
                if number in (1, 4):  # with answers on their way
                    node.kill()
                    node.start()
        assert columns in forms
        assert number > 5, "both kills were in the middle"
        assert found == [b"%d" % n for number in range(QUEUES) for n in range(number, COUNT, QUEUES)]
