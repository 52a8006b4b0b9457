"""Option values that several commands take, and the addresses that may be listened on."""

import time

import click
import pytest

from penstock.cli.listening import advertised_host, is_loopback, is_wildcard, require_private
from penstock.cli.option_types import PairType, PlaceType, parse_time_ms
from penstock.errors import OptionError


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1738335600000", 1_738_335_600_000),
        ("2025-01-31T15:00:00Z", 1_738_335_600_000),
        ("2025-01-31T16:00+01:00", 1_738_335_600_000),
        ("2025-01-31T15:00:00.250Z", 1_738_335_600_250),
        ("yesterday", None),
        ("123", None),
        ("-5", None),
        ("10 years", None),
        ("9999999999999999", None),
        ("1905-01-01", None),
        ("", None),
    ],
)
def test_times(text: str, moment: int | None) -> None:
    assert parse_time_ms(text) == moment


def test_times_ago_and_local_times() -> None:
    now = time.time() * 1000
    found = parse_time_ms("10m")
    assert found is not None
    assert abs(now - 600_000 - found) < 5_000
    assert parse_time_ms("2d ago") is not None
    local = parse_time_ms("2025-01-31T15:00")
    assert local is not None
    assert time.localtime(local // 1000).tm_hour == 15


def test_places_and_pairs() -> None:
    place, pair = PlaceType(), PairType()
    assert [place.convert(text, None, None) for text in ("first", "last")] == ["first", "last"]
    with pytest.raises(click.BadParameter, match="neither first nor last nor a time"):
        place.convert("soon", None, None)
    assert pair.convert("a=b=c", None, None) == ("a", "b=c")
    for text in ("a", "=b"):
        with pytest.raises(click.BadParameter, match="NAME=VALUE"):
            pair.convert(text, None, None)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_addresses_of_this_machine_alone(host: str) -> None:
    assert is_loopback(host)
    require_private(host, "--host", allowed=False)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.1.2", "example.org", "", "10.0.0.1", "fe80::1%eth0"]
)
def test_addresses_that_others_reach_need_a_word(host: str) -> None:
    assert not is_loopback(host)
    require_private(host, "--host", allowed=True)
    with pytest.raises(OptionError, match=r"^--host: .*--listen-anywhere"):
        require_private(host, "--host", allowed=False)


def test_wildcards_and_advertised_hosts() -> None:
    assert [is_wildcard(host) for host in ("0.0.0.0", "::", "[::]", "", "127.0.0.1", "host")] == [
        *(True, True, True, True),
        *(False, False),
    ]
    assert advertised_host("10.0.0.1:10911") == "10.0.0.1"
    assert advertised_host("10.0.0.1") == "10.0.0.1"
    assert advertised_host("[::1]:5") == "[::1]"
    assert advertised_host("fe80::1") == "fe80::1"
