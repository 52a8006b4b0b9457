"""What half messages and marks say: the page of formats, numbers that are none, and who is the same transaction."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock._hot.records import AppendRequest
from penstock.broker.half_messages import Half, is_same, mark, marked, number, prepared, put_back, read_half
from penstock.broker.record_gate import StoredRecord
from penstock.message import HostAddress, StoredMessage, decode_properties, encode_record
from penstock.protocol.topic_names import HALF_TOPIC
from penstock.store import MessageStore
from tests.support.running_broker import STORE

PAGE = Path(__file__).resolve().parents[3] / "docs" / "formats" / "transactions.md"
HOST = HostAddress("127.0.0.1", 10911)


def message(body: bytes = b"half", **properties: str) -> StoredMessage:
    names = {
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
        "PGROUP": "g",
        "UNIQ_KEY": "U",
        "TRAN_MSG": "true",
        **properties,
    }
    kept = {name: value for name, value in names.items() if value}
    return StoredMessage(HALF_TOPIC, body, kept, 0, 7, 1_000, 0, 0, 0, 0, 5, HOST, 9, HOST, 0, 0)


def half(**properties: Any) -> Half | None:
    stored = message(**properties)
    return read_half(StoredRecord(stored, encode_record(stored)))


def found(**properties: str) -> Half:
    read = half(**properties)
    assert read is not None
    return read


def request(tmp_path: Path, *offsets: int, is_put_back: bool = False) -> AppendRequest:
    with MessageStore.open(tmp_path, STORE) as store:
        queue = store.queues.get_or_create("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0).state
        return mark(offsets, queue, "M", 1, HOST.encode(), is_put_back=is_put_back)


def test_the_bodies_of_marks_on_the_page_are_what_is_written_and_read(tmp_path: Path) -> None:
    lines = re.findall(r"^((?:[0-9a-f]{2} )+)\s+(\S+)\s+half message", PAGE.read_text(), re.M)
    assert [text for _, text in lines] == ["12,13,40,", "7"]
    bodies = [bytes.fromhex(data) for data, _ in lines]
    assert bodies == [text.encode() for _, text in lines]
    assert [marked(message(body)) for body in bodies] == [([12, 13, 40], False), ([7], False)]
    written = request(tmp_path, 12, 13, 40)
    assert written.body == bodies[0]
    assert decode_properties(written.properties) == {"TAGS": "d", "UNIQ_KEY": "M"}


def test_a_mark_says_whether_what_it_names_goes_on(tmp_path: Path) -> None:
    written = request(tmp_path, 5, is_put_back=True)
    stored = replace(message(written.body), properties=decode_properties(written.properties))
    assert marked(stored) == ([5], True)


@pytest.mark.parametrize("body", [b"", b",", b"x,-1,\xff\xfe,1.5, ,", b"9" * 40])
def test_what_is_no_offset_marks_nothing(body: bytes) -> None:
    assert marked(message(body)) == ([], False)


@pytest.mark.parametrize("value", [None, "", "-1", "+1", "1 ", "٣", "0x1", "1" * 20, "1e3"])
def test_a_property_that_is_no_number_is_none(value: str | None) -> None:
    assert number(value) is None


def test_a_half_message_says_where_it_goes() -> None:
    read = found()
    assert (read.topic, read.queue_id, read.group, read.unique, read.origin) == ("T", 3, "g", "U", 7)
    assert (read.checks, read.first_stored_ms, read.is_foreign_copy) == (0, 9, False)


@pytest.mark.parametrize(
    "properties",
    [
        {"REAL_TOPIC": ""},
        {"REAL_TOPIC": "../x"},
        {"REAL_QID": ""},
        {"REAL_QID": "-1"},
        {"REAL_QID": "9" * 12},
    ],
)
def test_what_could_never_be_committed_is_no_half_message(properties: dict[str, str]) -> None:
    assert half(**properties) is None


def test_a_record_of_another_topic_is_no_half_message() -> None:
    stored = replace(message(), topic="T")
    assert read_half(StoredRecord(stored, encode_record(stored))) is None


def test_times_of_copies_count_from_the_first() -> None:
    ours = found(TRAN_PREPARED_QUEUE_OFFSET="2", TRANSACTION_CHECK_TIMES="4", PENSTOCK_PREPARED_MS="3")
    assert (ours.origin, ours.checks, ours.first_stored_ms, ours.is_foreign_copy) == (2, 4, 3, False)
    javas = found(TRANSACTION_CHECK_TIMES="1")
    assert (javas.origin, javas.first_stored_ms, javas.is_foreign_copy) == (7, 5, True)


@pytest.mark.parametrize(
    ("seconds", "wanted"), [("", 6_000), ("3", 6_000), ("10", 10_000), ("-1", 6_000), ("9" * 19, 10**12)]
)
def test_immunity_is_never_shorter_than_the_timeout(seconds: str, wanted: int) -> None:
    assert found(CHECK_IMMUNITY_TIME_IN_SECONDS=seconds).immunity_ms(6_000) == wanted


def test_a_copy_says_what_it_is_a_copy_of(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, STORE) as store:
        queue = store.queues.get_or_create(HALF_TOPIC, 0).state
        first, again = put_back(found(), queue, 1), put_back(found(TRANSACTION_CHECK_TIMES="1"), queue, 2)
        moved = put_back(found(), queue, 0)
    copies = [decode_properties(one.properties) for one in (first, again, moved)]
    assert [copy["TRAN_PREPARED_QUEUE_OFFSET"] for copy in copies] == ["7", "7", "7"]
    assert [copy.get("TRANSACTION_CHECK_TIMES") for copy in copies] == ["1", "2", None]
    assert first.body == b"half"


def test_one_id_can_be_two_transactions() -> None:
    one, copy = found(), found(TRAN_PREPARED_QUEUE_OFFSET="7", TRANSACTION_CHECK_TIMES="1")
    assert is_same(one, copy)
    assert not is_same(one, found(TRAN_PREPARED_QUEUE_OFFSET="6"))
    assert not is_same(one, found(UNIQ_KEY="other"))
    assert not is_same(one, found(PGROUP="other"))
    javas = replace(found(TRANSACTION_CHECK_TIMES="1"), origin=12)
    assert is_same(one, javas)


def test_a_sender_that_names_no_group_has_its_own() -> None:
    assert prepared("T", 1, "U", "g", {})["PGROUP"] == "g"
    assert "PGROUP" not in prepared("T", 1, "U", "g", {"PGROUP": "h"})
