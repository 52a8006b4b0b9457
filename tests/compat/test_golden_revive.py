"""The examples of docs/formats/revive-topic.md against the product, byte for byte."""

from __future__ import annotations

from penstock.broker.pop_records import (
    CheckKey,
    CheckPoint,
    OrderedNotes,
    QueueKey,
    ack_record,
    check_point_record,
    ordered_ack_record,
    ordered_record,
)
from tests.compat.test_golden_bytes import BORN, GOLDEN

CHECK = CheckPoint(CheckKey(QueueKey("orders", "workers", 1), 100, BORN), 60_000, 0, (100, 101, 103))


def test_records_of_a_pop() -> None:
    body, properties = check_point_record(CHECK, "broker-a")
    assert body == GOLDEN["revive-ck"].strip()
    name = b"orders@1@100@workers@1700000000000@broker-a@ck"
    assert properties == (b"TAGS\x01ck\x02UNIQ_KEY\x01" + name + b"\x02TIMER_DELIVER_MS\x011700000059000\x02")
    assert ack_record(CHECK, [101], "broker-a")[0] == GOLDEN["revive-ack"].strip()
    assert ack_record(CHECK, [100, 103], "broker-a")[0] == GOLDEN["revive-back"].strip()
    assert b"TAGS\x01bAck\x02" in ack_record(CHECK, [100, 103], "broker-a")[1]


def test_records_of_a_pop_in_order() -> None:
    notes = OrderedNotes((60_000, 60_000, 75_000), (1, 1, 1), "try-7")
    body, properties = ordered_record(CHECK, notes, "broker-a")
    assert body == GOLDEN["revive-ock"].strip()
    # A tag that RocketMQ passes over: it must not give these messages back out of order.
    assert properties.startswith(b"TAGS\x01ock\x02")
    body, properties = ordered_ack_record(CHECK, [100], "broker-a")
    assert body == GOLDEN["revive-oack"].strip()
    assert properties.startswith(b"TAGS\x01oack\x02")
