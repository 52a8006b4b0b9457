"""Where a client is in its life, under RocketMQ's names.

    CREATE_JUST -> START_FAILED -> RUNNING -> SHUTDOWN_ALREADY

A start goes to START_FAILED first and to RUNNING when everything is up: whatever ends it in between leaves the state
that says so. Unlike RocketMQ's, a client whose start failed may be started again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NoReturn


class ServiceState(StrEnum):
    """The `state` of a producer or a consumer."""

    CREATE_JUST = "CREATE_JUST"
    START_FAILED = "START_FAILED"
    RUNNING = "RUNNING"
    SHUTDOWN_ALREADY = "SHUTDOWN_ALREADY"


class OneProcess:
    """Of a client, which has connections: copies of it, also those of pickle, could not work."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled; make one in each process that uses it"
        )
