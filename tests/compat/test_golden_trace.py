"""A trace on the page of its format, byte for byte."""

from penstock.client.trace_records import TraceKind, TraceRecord, decode, encode
from tests.compat.test_golden_bytes import GOLDEN

RECORD = TraceRecord(
    TraceKind.SUB_BEFORE, "AC11", 1_700_000_000_123, group="G1", request_id="R1", tries=2, keys="k1"
)


def test_a_trace_is_written_and_read_as_the_page_says() -> None:
    fields = ["SubBefore", "1700000000123", "null", "G1", "R1", "AC11", "2", "k1"]
    assert GOLDEN["trace-before"] == "\x01".join(fields).encode() + b"\x02"
    assert encode(RECORD).encode() == GOLDEN["trace-before"]
    assert decode(GOLDEN["trace-before"].decode()) == [RECORD]
