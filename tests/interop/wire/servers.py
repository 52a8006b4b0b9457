"""The servers that the same tests run against."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.interop.java_errors import RegistryOutOfReach
from tests.interop.java_release import missing_tools
from tests.interop.wire.peer import Server
from tests.interop.wire.penstock_server import Penstock
from tests.interop.wire.rocketmq_server import RocketMQ

T = TypeVar("T")
SERVERS: dict[str, Callable[[Path], Server]] = {"rocketmq": RocketMQ, "penstock": Penstock}


def started(name: str, directory: Path) -> Server:
    """A running server, or a skip that says why there is none."""
    needs_java = name == "rocketmq"
    return or_skip(lambda: SERVERS[name](directory), missing_tools() if needs_java else None)


def or_skip(prepare: Callable[[], T], missing: str | None) -> T:
    """What needs a registry, or a skip that says why it could not be had."""
    if missing is not None:
        pytest.skip(missing)
    try:
        return prepare()
    except RegistryOutOfReach as unreachable:
        pytest.skip(str(unreachable))
