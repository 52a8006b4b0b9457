"""RocketMQ 5.3.3's default settings, read out of its classes, beside ours, one by one. Every difference and every
setting without an option has a row with its reason in docs/compatibility.md, and no row is left over."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.interop.java_release import missing_tools
from tests.interop.wire.rocketmq_server import mqadmin_command
from tests.interop.wire.servers import or_skip
from tests.support.default_settings import (
    KEYS_OF,
    Difference,
    default,
    differences,
    is_equal,
    is_matched,
    option_name,
    patterns,
    shown,
)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """By class and name."""
    directory = tmp_path_factory.mktemp("defaults")
    command = or_skip(lambda: mqadmin_command(directory, "penstock.interop.admin.Defaults"), missing_tools())
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=directory)
    found: dict[str, dict[str, str]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def test_every_difference_has_a_row_and_every_row_is_one(settings: dict[str, dict[str, str]]) -> None:
    machine = {row.setting for row in differences() if row.theirs == "*"}
    found = {
        Difference(
            f"{owner}.{name}", "*" if f"{owner}.{name}" in machine else shown(theirs), option_name(key), ours
        )
        for owner, values in settings.items()
        for name, theirs in values.items()
        if (key := KEYS_OF[owner].get(name)) is not None and not is_equal(key, theirs)
        for ours in [shown(default(key))]
    }
    assert sorted(found) == sorted(differences())


def test_every_setting_without_an_option_has_a_reason(settings: dict[str, dict[str, str]]) -> None:
    names = [
        f"{owner}.{name}"
        for owner, values in settings.items()
        for name in values
        if name not in KEYS_OF[owner]
    ]
    known = patterns()
    assert [name for name in names if not any(is_matched(name, pattern) for pattern in known)] == []
    assert [pattern for pattern in known if not any(is_matched(name, pattern) for name in names)] == []


def test_every_setting_that_a_configuration_file_may_have_is_one_of_rocketmqs(
    settings: dict[str, dict[str, str]],
) -> None:
    """Names that RocketMQ reads and that have no default are strings without a value."""
    known = {name for values in settings.values() for name in values}
    unknown = {
        name
        for owner in ("DefaultMQProducer", "DefaultMQPushConsumer")
        for name in KEYS_OF[owner]
        if name not in known
    }
    assert unknown == set()
