"""Options, and which of them may change while the server runs."""

from dataclasses import fields

import pytest

from penstock.errors import OptionError, RequestError
from penstock.nameserver import ConfigUpdates, NameServerOptions
from penstock.nameserver.runtime_config import CHANGEABLE, RuntimeConfig, parse_properties


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 65_536},
        {"port": -1},
        {"host": ""},
        {"scan_first_ms": 0},
        {"scan_interval_ms": 0},
        {"broker_expiry_ms": 0},
        {"broker_expiry_ms": 3_600_001},
        {"brokers_max": 0},
        {"wait_for_service_seconds": -1},
    ],
    ids=str,
)
def test_options_outside_their_range(wrong: dict[str, int | str]) -> None:
    with pytest.raises(OptionError, match=next(iter(wrong))):
        NameServerOptions(**wrong)  # type: ignore[arg-type]


@pytest.mark.abuse("A8")
def test_what_can_be_changed_is_neither_path_nor_address_nor_limit() -> None:
    names = {field.name for field in fields(NameServerOptions)}
    changeable = {item.field for item in CHANGEABLE.values()}
    assert changeable <= names
    assert not {name for name in changeable if "path" in name or "max" in name or name in ("host", "port")}


def test_every_changeable_key_changes_its_field() -> None:
    config = RuntimeConfig(NameServerOptions())
    for key, item in CHANGEABLE.items():
        before = getattr(config.options, item.field)
        text = "1234" if isinstance(before, int) and not isinstance(before, bool) else str(not before)
        config.update(f"{key}={text}".encode(), "127.0.0.1")
        assert str(getattr(config.options, item.field)) == text
        assert f"{key}={text.lower()}\n" in config.text()


@pytest.mark.abuse("A8")
@pytest.mark.parametrize(
    ("updates", "peer", "is_allowed"),
    [
        (ConfigUpdates.LOOPBACK, "127.0.0.1", True),
        (ConfigUpdates.LOOPBACK, "::1", True),
        (ConfigUpdates.LOOPBACK, "10.0.0.1", False),
        (ConfigUpdates.OFF, "127.0.0.1", False),
        (ConfigUpdates.ANYWHERE, "10.0.0.1", True),
    ],
)
def test_who_may_change_it(updates: ConfigUpdates, peer: str, is_allowed: bool) -> None:
    config = RuntimeConfig(NameServerOptions(config_updates=updates))
    if is_allowed:
        config.update(b"orderMessageEnable=true", peer)
    else:
        with pytest.raises(RequestError) as caught:
            config.update(b"orderMessageEnable=true", peer)
        assert caught.value.code == 16
    assert config.options.order_messages is is_allowed


@pytest.mark.abuse("A8")
@pytest.mark.parametrize(
    "text",
    [
        "orderMessageEnable=1",
        "orderMessageEnable=",
        "scanNotActiveBrokerInterval=999",
        "scanNotActiveBrokerInterval=-5",
        "scanNotActiveBrokerInterval=" + "9" * 5_000,
        "scanNotActiveBrokerInterval=٣٠٠٠",
    ],
)
def test_values_have_types_and_ranges(text: str) -> None:
    config = RuntimeConfig(NameServerOptions())
    with pytest.raises(RequestError) as caught:
        config.update(f"enableTopicList=false\n{text}".encode(), "127.0.0.1")
    assert caught.value.code == 29
    assert config.options == NameServerOptions()


def test_properties_text() -> None:
    text = "# comment\n! another\n\n a = 1 \nb:2\nc 3\r\nd=\ne\n f\\=g = h=i\\\\j\n"
    assert parse_properties(text.encode()) == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "",
        "e": "",
        "f=g": "h=i\\j",
    }
    assert parse_properties(b"") == {}
    for data in (b"\xff=1", b"a" * 70_000):
        with pytest.raises(RequestError) as caught:
            parse_properties(data)
        assert caught.value.code == 29
    assert parse_properties(b"trailing\\") == {"trailing": ""}
