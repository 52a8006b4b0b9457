"""What the store noticed about its own files: damage, repairs, things it dropped and why.

Rule: nothing is skipped, dropped or repaired without a finding. Findings go to the log, stay in a bounded
list for status pages, and are what `penstock store verify` prints.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass

_LOG = logging.getLogger("penstock.store")
KEPT = 10_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing noticed. `position` is a log position, or -1 where the log is not concerned."""

    kind: str
    detail: str
    position: int = -1
    length: int = 0
    path: str = ""

    @property
    def is_damage(self) -> bool:
        """Whether messages are affected, as opposed to something that was repaired or is harmless."""
        return self.kind.startswith("damaged")

    def to_json(self) -> dict[str, object]:
        return asdict(self)


class Findings:
    """The bounded list; any thread may add."""

    def __init__(self) -> None:
        self._items: deque[Finding] = deque(maxlen=KEPT)
        self._listeners: list[Callable[[Finding], None]] = []
        self.total = 0

    def add(self, finding: Finding) -> None:
        self.total += 1
        self._items.append(finding)
        level = logging.ERROR if finding.is_damage else logging.WARNING
        _LOG.log(
            level,
            "%s: %s (position %d, %d bytes) %s",
            finding.kind,
            finding.detail,
            finding.position,
            finding.length,
            finding.path,
        )
        for listener in self._listeners:
            listener(finding)

    def listen(self, listener: Callable[[Finding], None]) -> None:
        self._listeners.append(listener)

    def all(self) -> list[Finding]:
        return list(self._items)

    def damage(self) -> list[Finding]:
        return [finding for finding in self._items if finding.is_damage]
