"""Which metadata store an address means, and which options ZooKeeper's may have."""

import builtins
from typing import Any

import pytest

from penstock.coordinator.metadata import MetadataStore, metadata_store
from penstock.coordinator.metadata.zookeeper_options import ZooKeeperOptions
from penstock.errors import OptionError


def test_addresses_name_the_backend() -> None:
    def made(address: str) -> MetadataStore:
        return metadata_store(address, session_timeout_ms=4321)

    assert made("sqlite:/tmp/x/metadata.db").address == "sqlite:/tmp/x/metadata.db"
    assert made("zookeeper:a:1,b:2").address == "zookeeper:a:1,b:2/penstock"
    assert made("zookeeper:a:1,b:2/tubemq/x").address == "zookeeper:a:1,b:2/tubemq/x"
    for wrong in ("", "sqlite", "sqlite:", "zookeeper:", "etcd:a:1", "a:1", "zookeeper:a", "zookeeper:a:1,"):
        with pytest.raises(OptionError) as error:
            made(wrong)
        assert error.value.hint


@pytest.mark.parametrize(
    "options",
    [
        {"hosts": "a:0"},
        {"hosts": "a:65536"},
        {"hosts": ":1"},
        {"hosts": "a:1", "root": "x"},
        {"hosts": "a:1", "root": "/x/"},
        {"hosts": "a:1", "root": "/" + "x" * 64},
        {"hosts": "a:1", "session_timeout_ms": 0},
        {"hosts": "a:1", "connect_timeout_ms": -1},
        {"hosts": "a:1", "operation_timeout_ms": 0},
    ],
    ids=str,
)
def test_options_outside_their_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError) as error:
        ZooKeeperOptions(**options)
    assert error.value.hint


def test_defaults_are_those_of_the_design() -> None:
    options = ZooKeeperOptions("a:1")
    assert (options.root, options.session_timeout_ms) == ("/penstock", 6_000)


def test_without_kazoo_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "penstock.coordinator.metadata.zookeeper":
            raise ModuleNotFoundError("No module named 'kazoo'", name="kazoo")
        return real_import(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(OptionError, match=r"pip install '\.\[zookeeper\]'"):
        metadata_store("zookeeper:a:1")
    assert metadata_store("sqlite:x").address == "sqlite:x"
