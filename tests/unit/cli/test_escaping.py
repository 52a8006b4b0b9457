"""Text from outside never acts on a terminal."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.console import count_text, rate_text, size_text, time_text
from penstock.cli.escaping import body_text, one_line, printable


@pytest.mark.abuse("A25")
@given(st.text(alphabet=st.characters()))
def test_what_is_shown_is_printable_and_in_one_line(text: str) -> None:
    assert all(char.isprintable() for char in printable(text))
    assert "\n" not in one_line(text)


@given(st.text(), st.integers(1, 50))
def test_what_is_cut_has_at_most_the_limit(text: str, limit: int) -> None:
    assert len(printable(text, limit)) <= limit


def test_readable_text_stays_as_it_is() -> None:
    assert printable("café 标签 😀 [red] ok") == "café 标签 😀 [red] ok"
    assert printable("a\tb\x1b\x9b\u202e\ud800") == "a\\tb\\x1b\\x9b\\u202e\\ud800"
    assert printable("abcdef", 4) == "abc…"
    assert len(one_line("x" * 10_000)) == 2_000


@given(st.binary())
def test_a_body_is_text_or_base64_and_comes_back(body: bytes) -> None:
    text, encoding = body_text(body)
    assert json.loads(json.dumps(text)) == text
    assert (text.encode() if encoding == "utf-8" else base64.b64decode(text)) == body


def test_a_body_with_control_characters_is_base64() -> None:
    assert body_text(b"two\nlines\tok") == ("two\nlines\tok", "utf-8")
    assert body_text(b"\x1b[31m")[1] == "base64"
    assert body_text(b"\xff")[1] == "base64"
    assert body_text(b"") == ("", "utf-8")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (65536, "64 KiB"), (1 << 30, "1 GiB"), (1536, "1.5 KiB")],
)
def test_sizes_are_shown_in_binary_units(count: int, text: str) -> None:
    assert size_text(count) == text


def test_times_no_calendar_has_stay_numbers() -> None:
    assert time_text(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert time_text(0) == "-"
    assert time_text(1 << 62) == str(1 << 62)


def test_counts_and_rates() -> None:
    assert (count_text(1, "entry"), count_text(2000, "entry"), count_text(0, "file")) == (
        "1 entry",
        "2,000 entries",
        "0 files",
    )
    assert rate_text(5_000_000, 1000) == "5.0 MB/s"
    assert rate_text(0, 0) == "0.0 MB/s"
