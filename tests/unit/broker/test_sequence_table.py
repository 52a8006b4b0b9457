"""Which sequences are stored: windows, floors, what is forgotten, the file, and what a log says."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from penstock.broker.sequence_file import decode, encode, freeze
from penstock.broker.sequence_scan import PIECE_BYTES, Found, scan
from penstock.broker.sequence_table import NOT_STORED, TOO_OLD, Pair, SequenceTable
from penstock.errors import CodecError
from penstock.message import Message
from penstock.store import MessageStore, StoreOptions

A, B = Pair("a", "T", 0), Pair("b", "T", 1)


def table(window: int = 8, sequences_max: int = 1_000) -> SequenceTable:
    return SequenceTable(window, sequences_max)


# -- windows -------------------------------------------------------------------------------------------------


def test_a_sequence_is_known_by_its_first_position_and_by_its_pair() -> None:
    found = table()
    found.add(A, 3, 300, 1)
    found.add(A, 3, 900, 2)  # a copy: a delayed message that is due
    assert found.find(A, 3) == 300
    assert found.find(A, 2) == found.find(A, 4) == found.find(B, 3) == NOT_STORED
    assert found.find(Pair("a", "T", 1), 3) == found.find(Pair("a", "U", 0), 3) == NOT_STORED
    assert (len(found), found.count) == (1, 1)


def test_sequences_may_come_in_any_order_within_the_window() -> None:
    found = table()
    order = [5, 2, 7, 0, 6, 1, 4, 3]
    for sequence in order:
        found.add(A, sequence, sequence * 10, 1)
    assert [found.find(A, sequence) for sequence in range(8)] == [n * 10 for n in range(8)]


def test_what_has_left_the_window_is_too_old_and_is_never_called_new() -> None:
    found = table(window=8)
    for sequence in range(0, 200, 2):
        found.add(A, sequence, sequence, 1)
    window = found.get(A)
    assert window is not None
    assert 8 <= len(window.sequences) <= 9
    assert found.find(A, 198) == 198
    assert found.find(A, 0) == TOO_OLD
    assert found.find(A, window.floor - 1) == TOO_OLD, "never stored, but nobody knows that any more"
    assert found.find(A, 197) == NOT_STORED
    found.add(A, 0, 5_000, 1)
    assert found.find(A, 0) == TOO_OLD


def test_over_the_limit_of_all_those_who_sent_longest_ago_keep_only_how_far_they_came() -> None:
    found = table(window=8, sequences_max=10)
    for pair in (A, B, Pair("c", "T", 0)):
        for sequence in range(4):
            found.add(pair, sequence, sequence, 1)
    assert found.count <= 10
    assert len(found) == 3
    assert found.find(A, 3) == TOO_OLD
    assert found.find(A, 4) == NOT_STORED
    assert found.find(Pair("c", "T", 0), 0) == 0


def test_one_pair_alone_is_trimmed_too() -> None:
    found = table(window=100, sequences_max=10)
    for sequence in range(50):
        found.add(A, sequence, sequence, 1)
    assert found.count <= 10
    assert found.find(A, 49) == 49
    assert found.find(A, 10) == TOO_OLD


def test_a_cut_takes_what_lay_behind_and_nothing_else() -> None:
    found = table()
    for sequence in range(6):
        found.add(A, sequence, sequence * 10, 1)
    found.add(B, 0, 55, 1)
    found.cut(30)
    assert [found.find(A, n) for n in range(6)] == [0, 10, 20, NOT_STORED, NOT_STORED, NOT_STORED]
    assert B not in found
    assert found.count == 3


def test_a_deleted_topic_is_forgotten_and_the_one_made_anew_is_not() -> None:
    found = table()
    found.add(A, 1, 10, 1)
    found.add(Pair("a", "U", 0), 1, 20, 1)
    found.forget_topic("T", 100)
    assert found.find(A, 1) == NOT_STORED
    assert found.find(Pair("a", "U", 0), 1) == 20
    found.add(A, 1, 200, 1)
    found.forget_topic("T", 100)
    assert found.find(A, 1) == 200


def test_pairs_that_send_nothing_for_long_are_forgotten() -> None:
    found = table()
    found.add(A, 1, 10, 1_000)
    found.add(B, 1, 20, 2_000)
    assert found.expire(1_500) == 1
    assert A not in found
    assert found.find(B, 1) == 20
    assert found.count == 1


def test_one_that_the_log_does_not_have_is_taken_out() -> None:
    found = table()
    for sequence in range(3):
        found.add(A, sequence, sequence, 1)
    found.remove(A, 1)
    found.remove(A, 7)
    found.remove(B, 1)
    assert [found.find(A, n) for n in range(3)] == [0, NOT_STORED, 2]
    assert found.count == 2


# -- the file ------------------------------------------------------------------------------------------------


def filled() -> SequenceTable:
    found = table(window=4)
    for sequence in range(9):
        found.add(A, sequence * 7, 1_000 + sequence, 5)
    found.add(Pair("prodücer", "%T", 65_535), 2**61, 2**40, 2**41)
    return found


def test_the_file_brings_back_the_table() -> None:
    found, read = filled(), table(window=4)
    assert decode(encode(freeze(found, 2**50), 2**50), read) == 2**50
    assert read.count == found.count
    for pair, window in found.items():
        other = read.get(pair)
        assert other is not None
        assert (other.floor, other.used_ms) == (window.floor, window.used_ms)
        assert (other.sequences, other.positions) == (window.sequences, window.positions)


def test_the_file_knows_nothing_behind_its_position() -> None:
    found, read = filled(), table(window=4)
    decode(encode(freeze(found, 1_008), 1_008), read)
    assert read.find(A, 7 * 7) == 1_007
    assert read.find(A, 8 * 7) == NOT_STORED
    assert len(read) == 1
    assert found.find(A, 8 * 7) == 1_008, "the table itself goes on"


@pytest.mark.fault("F5")
def test_a_torn_or_changed_file_is_never_believed() -> None:
    data = encode(freeze(filled(), 2**50), 2**50)
    for size in range(len(data)):
        with pytest.raises(CodecError):
            decode(data[:size], table())
    for at in range(0, len(data), 3):
        changed = bytearray(data)
        changed[at] ^= 0x40
        with pytest.raises(CodecError):
            decode(bytes(changed), table())
    with pytest.raises(CodecError):
        decode(data + b"\0", table())


def test_a_file_whose_counts_lie_is_refused_although_its_checksum_is_right() -> None:
    frozen = freeze(filled(), 2**50)
    frozen[0][1].positions = array("q", [1])
    with pytest.raises(CodecError):
        decode(encode(frozen, 2**50), table())


# -- what a log says -----------------------------------------------------------------------------------------

OPTIONS = StoreOptions(
    segment_size_bytes=1 << 20,
    queue_file_entries=1_000,
    index_slots=100,
    index_entries=1_000,
    max_message_size_bytes=600_000,
)


def read_all(store: MessageStore, start: int = 0) -> list[Found]:
    found: list[Found] = []
    position, limit = start, store.log.max_offset
    while position < limit:
        position, some = scan(store.log, position, limit)
        found += some
    assert position == limit
    return found


def sent(sequence: int, producer: str = "p", **more: str) -> dict[str, str]:
    return {**more, "PENSTOCK_PRODUCER": producer, "PENSTOCK_SEQUENCE": str(sequence)}


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    return MessageStore.open(tmp_path, OPTIONS, background=False)


def test_every_idempotent_send_is_found_where_it_lies(store: MessageStore) -> None:
    with store:
        wanted = []
        for number in range(3_000):
            if number % 3:
                store.append(Message("other", b"x" * (number % 700)), number % 4)
            else:
                result = store.append(Message("T", b"y" * (number % 900), sent(number)), number % 4)
                wanted.append((Pair("p", "T", number % 4), number, result.physical_offset))
        assert store.log.max_offset > 1 << 20, "more than one segment"
        found = read_all(store)
        assert [(one.pair, one.sequence, one.position) for one in found] == wanted
        middle = found[500]
        assert read_all(store, middle.position) == found[500:]
        assert all(one.store_timestamp > 0 for one in found)


def test_a_message_that_waits_counts_for_the_queue_it_is_meant_for(store: MessageStore) -> None:
    real = {"REAL_TOPIC": "T", "REAL_QID": "3"}
    with store:
        topics = ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer")
        for number, topic in enumerate(topics):
            store.append(Message(topic, b"x", sent(number, **real)), 0)
        assert [(one.pair, one.sequence) for one in read_all(store)] == [
            (Pair("p", "T", 3), number) for number in range(3)
        ]


def test_what_is_no_send_of_the_producer_is_passed_over(store: MessageStore) -> None:
    text = b"PENSTOCK_PRODUCER\x01p\x02PENSTOCK_SEQUENCE\x017\x02"
    with store:
        for topic in ("%RETRY%g", "%DLQ%g", "PENSTOCK_STAGED", "rmq_sys_REVIVE_LOG_c"):
            store.append(Message(topic, b"x", sent(1)), 0)
        store.append(Message("SCHEDULE_TOPIC_XXXX", b"x", sent(1, REAL_TOPIC="%RETRY%g", REAL_QID="0")), 0)
        store.append(Message("SCHEDULE_TOPIC_XXXX", b"x", sent(1)), 0)
        store.append(Message("T", text), 0)
        store.append(Message("T", b"x", {"note": "PENSTOCK_SEQUENCE"}), 0)
        store.append(Message("T", b"x", {"PENSTOCK_SEQUENCE": "1"}), 0)
        for value in ("-1", "1x", "9" * 30, "\u0663"):
            store.append(Message("T", b"x", {"PENSTOCK_PRODUCER": "p", "PENSTOCK_SEQUENCE": value}), 0)
        store.append(Message("T", text * 20, sent(5)), 0)
        assert [one.sequence for one in read_all(store)] == [5]


def test_a_record_larger_than_a_piece_is_read_whole(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.sequence_scan.PIECE_BYTES", 1_000)
    assert PIECE_BYTES > 1_000
    with store:
        for number in range(12):
            store.append(Message("T", b"z" * (number % 3 * 150_000), sent(number)), 0)
        assert [one.sequence for one in read_all(store)] == list(range(12))


@pytest.mark.fault("F7")
def test_damage_hides_its_own_record_only(store: MessageStore) -> None:
    with store:
        results = [store.append(Message("T", b"body", sent(number)), 0) for number in range(9)]
        segment = store.log.segment_of(0)
        assert segment is not None
        segment.file.pwrite(b"\xff\xff\xff\xff", results[4].physical_offset + 4)
        assert [one.sequence for one in read_all(store)] == [0, 1, 2, 3, 5, 6, 7, 8]
