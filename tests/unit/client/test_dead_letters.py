"""Dead letters as values: what a reason is, which ones are meant, how they are counted."""

import zlib
from dataclasses import replace

import pytest

from penstock.client.dead_letters import (
    GIVEN_UP,
    KINDS_MAX,
    OTHERS,
    USED_UP,
    DeadLetter,
    RedriveMark,
    Selection,
    Summing,
    group_of,
    kind_of,
    sampled,
)
from penstock.client.received import ReceivedMessage
from penstock.client.redrive_marks import Marks, copy_id
from penstock.errors import OptionError
from penstock.message import HostAddress, StoredMessage
from penstock.message.failures import bounded_reason, reason_of
from penstock.protocol.bodies import MessageQueue

QUEUE = MessageQueue("%DLQ%g", "b", 0)


def letter(number: int = 0, reason: str = "", tries: int = 1, **properties: str) -> DeadLetter:
    pairs = {"RETRY_TOPIC": "T", "UNIQ_KEY": f"U{number}", **properties}
    if reason:
        pairs["PENSTOCK_REASON"] = reason
    stored = StoredMessage(
        "%DLQ%g",
        b"body",
        pairs,
        queue_id=0,
        queue_offset=number,
        physical_offset=1_000 * number,
        size=0,
        body_crc=zlib.crc32(b"body"),
        flag=0,
        sys_flag=0,
        born_timestamp=1,
        born_host=HostAddress("127.0.0.1", 1),
        store_timestamp=1_700_000_000_000 + number,
        store_host=HostAddress("127.0.0.1", 10911),
        reconsume_times=tries,
        prepared_transaction_offset=0,
    )
    return DeadLetter("g", ReceivedMessage.of(stored, QUEUE))


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("KeyError: 'order-17'", "KeyError: 'order-#'"),
        ("timeout after 3000 ms at 10.0.0.7:443", "timeout after # ms at #.#.#.#:#"),
        ("no row deadbeef-0000-4000-8000-000000000001", "no row #"),
        ("bad pointer 0xDEADBEEF", "bad pointer #"),
        ("decade", "decade"),
        ("x" * 300, "x" * 116 + " ..."),
    ],
)
def test_a_kind_is_a_reason_without_particulars(reason: str, kind: str) -> None:
    assert kind_of(reason) == kind


def test_without_a_reason_the_tries_speak() -> None:
    assert letter(tries=17).reason == USED_UP
    assert letter(tries=16).reason == GIVEN_UP
    assert replace(letter(tries=4), tries_max=3).reason == USED_UP
    assert letter(reason="why", tries=17).reason == "why"


def test_reasons_are_one_bounded_printable_line() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no")

    assert reason_of(ValueError("a\x01b\x02\x1b[31m\r\nc")) == "ValueError: a b [31m c"
    assert reason_of(KeyError()) == "KeyError"
    assert reason_of(Mute()) == "Mute"
    for text in ("x" * 10_000, "ü" * 512, "\ud800" * 600, "🙂" * 130):
        assert len(bounded_reason(text).encode()) <= 512
    assert bounded_reason("é" * 256) == "é" * 256


def test_a_selection_takes_what_fits_all_of_it() -> None:
    one = letter(1, "ValueError: 7 is odd", KEYS="k1 k2", ORIGIN_MESSAGE_ID="O1")
    for fits in (
        Selection(),
        Selection(reason="valueerror"),
        Selection(reason="# is odd"),
        Selection(key="k2"),
        Selection(topic="T", redriven=False),
        Selection(ids=frozenset(("U1",))),
        Selection(ids=frozenset(("O1", "other"))),
        Selection(ids=frozenset((one.letter_id,))),
        Selection(since_ms=one.died_ms, until_ms=one.died_ms + 1),
    ):
        assert fits.matches(one), fits
    for differs in (
        Selection(reason="even"),
        Selection(key="k"),
        Selection(topic="U"),
        Selection(redriven=True),
        Selection(ids=frozenset(("U2",))),
        Selection(since_ms=one.died_ms + 1),
        Selection(until_ms=one.died_ms),
        Selection(key="k1", reason="even"),
    ):
        assert not differs.matches(one), differs
    assert Selection(redriven=True).matches(replace(one, redriven=RedriveMark("T", "X", 1)))
    with pytest.raises(OptionError):
        Selection(sample=-1)
    with pytest.raises(OptionError):
        Selection(since_ms=2, until_ms=1)


def test_a_sample_is_the_same_every_time_and_not_the_first_ones() -> None:
    letters = [letter(number) for number in range(200)]
    picked = [one.name for one in sampled(letters, 20)]
    assert [one.name for one in sampled(reversed(letters), 20)] == picked
    assert len(set(picked)) == 20
    assert picked != [one.name for one in letters[:20]]


def test_counts_are_bounded_and_complete() -> None:
    summing = Summing("g")
    for number in range(KINDS_MAX + 50):
        summing.add(letter(number, f"Error{chr(97 + number % 26)}{'x' * (number // 26)}: n"))
    for number in range(5):
        summing.add(replace(letter(number, "Frequent"), redriven=RedriveMark("T", "X", 1)))
    summary = summing.summary()
    assert summary.count == KINDS_MAX + 55
    assert summary.redriven == 5
    assert len(summary.kinds) <= KINDS_MAX + 1
    assert summary.kinds[0].kind == OTHERS
    counts = {kind.kind: kind for kind in summary.kinds}
    assert counts[OTHERS].count == 55
    assert counts[OTHERS].topics == {"T": 55}
    oldest = counts["Errora: n"]
    assert (oldest.oldest_ms, oldest.example_id) == (letter(0).died_ms, letter(0).letter_id)


def test_names_of_groups() -> None:
    assert group_of("%DLQ%g") == "g"
    assert group_of("%RETRY%g") == ""


# -- notes of redrives -------------------------------------------------------------------------------------------


def test_a_dead_letter_is_in_doubt_from_its_beginning_to_its_end() -> None:
    marks = Marks("g")
    marks.take(b'{"group": "g", "topic": "T", "begun": {"a": "A", "b": "B", "c": "C"}}', 1)
    assert marks.in_doubt == {"a": ("T", "A"), "b": ("T", "B"), "c": ("T", "C")}
    marks.take(b'{"group": "g", "topic": "T", "sent": {"a": "A"}, "unsent": ["b"]}', 2)
    assert marks.sent == {"a": RedriveMark("T", "A", 2)}
    assert marks.in_doubt == {"c": ("T", "C")}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"group": "other", "topic": "T", "sent": {"a": "A"}}',
        b'{"group": "g", "topic": 7, "sent": {"a": "A"}}',
        b'{"group": "g", "topic": "T", "sent": ["a"], "unsent": "a", "begun": 1}',
        b'{"group": "g", "topic": "T", "sent": {"a": 1, "b": "' + b"x" * 65 + b'"}, "unsent": [1]}',
    ],
)
def test_what_is_no_note_is_skipped(body: bytes) -> None:
    marks = Marks("g")
    marks.take(body, 1)
    assert (marks.sent, marks.in_doubt) == ({}, {})


def test_the_id_of_a_copy_follows_from_its_dead_letter() -> None:
    one, other = letter(1), letter(2)
    made = copy_id(one.name, "T", one.died_ms)
    assert made == copy_id(one.name, "T", one.died_ms)
    assert len({made, copy_id(one.name, "U", one.died_ms), copy_id(other.name, "T", other.died_ms)}) == 3
    assert len(made) == 32
    assert int(made, 16) >= 0
    # A log begun anew gives the same offset id at another time: that is another dead letter.
    again = replace(one, message=ReceivedMessage.of(replace(one.message.stored, store_timestamp=5), QUEUE))
    assert again.letter_id == one.letter_id
    assert copy_id(again.name, "T", again.died_ms) != made
