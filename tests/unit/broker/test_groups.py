"""Consumer groups: created on demand within limits, barred from topics, kept in their file."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.broker.groups import SYSTEM_GROUPS, Groups, is_group
from penstock.broker.options import BrokerOptions
from penstock.metadata.group_table import SubscriptionGroup
from penstock.runtime import Runtime
from penstock.testing import ManualClock
from tests.unit.broker.journals import journal
from tests.unit.broker.metadata_bench import refused

OPTIONS = BrokerOptions()


def groups(path: Path, options: BrokerOptions = OPTIONS, clock: ManualClock | None = None) -> Groups:
    table = Groups(options, Runtime(clock=clock or ManualClock()), journal(path))
    table.load()
    return table


def test_the_groups_of_rocketmq_s_tools_exist(tmp_path: Path) -> None:
    table = groups(tmp_path, replace(OPTIONS, auto_create_groups=False))
    assert set(table.all()) == set(SYSTEM_GROUPS)
    assert table.get("TOOLS_CONSUMER") is not None


@pytest.mark.seed("S4-33")
@pytest.mark.seed("S4-34")
def test_a_new_group_is_created_and_then_joined(tmp_path: Path) -> None:
    table = groups(tmp_path, replace(OPTIONS, retry_max_times=3))
    assert table.find("g") is None
    before = table.data_version
    made = table.get("g")
    assert made == SubscriptionGroup("g", retry_max_times=3)
    assert table.get("g") is made
    assert table.find("g") is made
    assert table.data_version > before


def test_creation_can_be_switched_off(tmp_path: Path) -> None:
    table = groups(tmp_path, replace(OPTIONS, auto_create_groups=False))
    assert table.get("g") is None
    with refused(26):
        table.require("g")
    table.reconfigure(OPTIONS)
    assert table.require("g").name == "g"


@pytest.mark.abuse("A6")
@pytest.mark.parametrize("name", ["", " ", "a b", "../x", "a/b", "a\0", "g" * 121, "é", "a.b", "x" * 10_000])
def test_bad_names_are_refused(tmp_path: Path, name: str) -> None:
    table = groups(tmp_path)
    assert not is_group(name)
    assert table.get(name) is None
    with refused(29):
        table.update(SubscriptionGroup(name))


@pytest.mark.abuse("A14")
def test_clients_create_only_so_many(tmp_path: Path) -> None:
    clock = ManualClock()
    options = replace(OPTIONS, create_burst=2, create_per_second=1, auto_groups_max=len(SYSTEM_GROUPS) + 3)
    table = groups(tmp_path, options, clock)
    assert table.get("g0") is not None
    assert table.get("g1") is not None
    assert table.get("g2") is None
    clock.advance(10_000)
    assert table.get("g2") is not None
    assert table.get("g3") is None  # there is a permit left, but no room
    table.update(SubscriptionGroup("by-operator"))


def test_a_group_is_barred_from_a_topic(tmp_path: Path) -> None:
    table = groups(tmp_path)
    table.get("g")
    assert not table.is_read_forbidden("g", "T")
    table.forbid_read("g", "T", True)
    assert table.is_read_forbidden("g", "T")
    assert not table.is_read_forbidden("g", "U")
    assert table.forbidden() == {"g": {"T": 4}}
    table.forbid_read("g", "T", False)
    assert not table.is_read_forbidden("g", "T")
    assert table.forbidden() == {}


def test_deleting(tmp_path: Path) -> None:
    table = groups(tmp_path)
    table.get("g")
    table.forbid_read("g", "T", True)
    assert table.delete("g")
    assert not table.delete("g")
    assert table.find("g") is None
    assert table.forbidden() == {}


def test_groups_survive_a_restart(tmp_path: Path) -> None:
    async def life() -> None:
        table = groups(tmp_path)
        table.start()
        table.update(SubscriptionGroup("g", retry_max_times=5))
        table.forbid_read("g", "T", True)
        await table.stop()

    asyncio.run(life())
    again = groups(tmp_path)
    assert again.find("g") == SubscriptionGroup("g", retry_max_times=5)
    assert again.is_read_forbidden("g", "T")
    assert again.stored.is_clean
