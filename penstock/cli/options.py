"""Settings of a server process as a whole, beside those of the rooms that it assembles."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import OptionError

LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """What `penstock up`, `penstock nameserver` and `penstock broker` need to know besides the roles. In a TOML
    file these stand before the first table; in the environment they are PENSTOCK_DATA and so on."""

    # Directory of the broker's store and configuration, made if it is not there. A RocketMQ store directory may be
    # named as it is (storePathRootDir).
    data: str = "penstock-data"
    # Allow listening on addresses that other machines can reach without access control: whoever reaches the port may
    # then read, write and delete everything. With access.enabled it need not be said.
    listen_anywhere: bool = False
    # From which level on log lines go to standard error: debug, info, warning or error.
    log_level: str = "warning"
    # How long a stop may take: open requests are answered, offsets saved, the store flushed and closed. After this
    # time the process ends as if killed, and the next start recovers.
    stop_timeout_ms: int = 30_000

    def __post_init__(self) -> None:
        if not self.data:
            raise OptionError("data is empty", "name a directory")
        if self.log_level not in LOG_LEVELS:
            raise OptionError(f"log_level is {self.log_level!r}", f"use {', '.join(LOG_LEVELS)}")
        if self.stop_timeout_ms < 1:
            raise OptionError(f"stop_timeout_ms is {self.stop_timeout_ms}", "use at least 1")
