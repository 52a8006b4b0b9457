"""Ids and property texts: the small codecs that sends rest on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from penstock.broker import property_text as text
from penstock.broker.message_ids import OffsetIds, UniqueIds
from penstock.broker.options import BrokerOptions
from penstock.errors import CodecError, PropertiesTooLargeError
from penstock.message import HostAddress, format_message_id
from penstock.runtime import Runtime, SeededEntropy
from penstock.testing import ManualClock

# 2023-12-31 23:59:59.500 UTC
NEW_YEAR = 1_704_067_199_500


def test_unique_keys_look_like_a_java_clients() -> None:
    clock = ManualClock(NEW_YEAR)
    ids = UniqueIds(HostAddress("10.1.2.3", 1), Runtime(clock=clock, entropy=SeededEntropy(1)))
    first = ids.next()
    assert (len(first), first[:8]) == (32, "0A010203")
    assert int(first[20:28], 16) == 31 * 86_400_000 - 500
    clock.advance(1_000)
    assert int(ids.next()[20:28], 16) == 500
    clock.jump(-1_000)
    assert int(ids.next()[20:28], 16) == 31 * 86_400_000 - 500
    assert len({ids.next() for _ in range(65_536)}) == 65_536
    assert len(UniqueIds(HostAddress("::1", 1), Runtime(clock=clock)).next()) == 56


def test_offset_ids_carry_what_the_client_can_reach() -> None:
    for advertised, local, reached in (
        ("", HostAddress("10.0.0.1", 10911), HostAddress("10.0.0.1", 10911)),
        ("", HostAddress("::1", 10911), HostAddress("::1", 10911)),
        ("10.9.9.9", HostAddress("10.0.0.1", 10911), HostAddress("10.9.9.9", 10911)),
        ("10.9.9.9:5", HostAddress("10.0.0.1", 10911), HostAddress("10.9.9.9", 5)),
        ("mq.example.com:5", HostAddress("10.0.0.1", 10911), HostAddress("10.0.0.1", 10911)),
    ):
        ids = OffsetIds(BrokerOptions(advertised_address=advertised))
        connection = SimpleNamespace(local=local, attributes={})
        for position in (0, 256, 2**62):
            found = ids.of(connection, position)  # type: ignore[arg-type]
            assert found == format_message_id(reached, position)


def test_properties_are_read_as_rocketmq_reads_them() -> None:
    assert text.parse("") == {}
    assert text.parse("a\x011\x02b\x012") == {"a": "1", "b": "2"}
    assert text.parse("a\x011\x02a\x012\x02") == {"a": "2"}
    assert text.parse("noise\x02\x01x\x02a\x01\x02b\x012\x013\x02\x02") == {"b": "2\x013"}


def test_only_what_has_to_change_changes() -> None:
    given = "z\x01 1\x02junk\x02a\x01ä"
    pairs = text.parse(given)
    assert text.changed(given, pairs, text.BROKERS_OWN, {}) == given + "\x02"
    assert text.changed("", {}, (), {"n": "v"}) == "n\x01v\x02"
    assert text.changed(given, pairs, ("z",), {"n": "v"}) == "junk\x02a\x01ä\x02n\x01v\x02"
    assert text.changed(given, pairs, (), {"a": "b"}) == "z\x01 1\x02junk\x02a\x01b\x02"
    hidden = "__RMQ.TRANSIENT.t\x01x\x02k\x01v\x02"
    assert text.changed(hidden, text.parse(hidden), (), {}) == "k\x01v\x02"


def test_what_fits_no_record_is_refused() -> None:
    assert len(text.encode("x" * 32_767)) == 32_767
    with pytest.raises(PropertiesTooLargeError):
        text.encode("ä" * 16_384)
    with pytest.raises(CodecError):
        text.encode("half \ud800 a character")
