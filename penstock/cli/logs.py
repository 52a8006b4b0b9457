"""Log lines of the server commands: to standard error, one line each, safe for a terminal.

Rule: lines of one kind, which are those of one place in the source, are written so many times in a while and then
counted. Whoever can make a server say something a million times must not fill its disk with it.
"""

from __future__ import annotations

import logging
import time

from penstock.cli.escaping import one_line

LINES_PER_KIND = 20
WHILE_S = 10.0
# Some loggers write what they say into the format itself.
KINDS_MAX = 1_000


class _NotTooOften(logging.Filter):
    """Lets a number of lines of each kind through, and says later how many it did not."""

    def __init__(self) -> None:
        super().__init__()
        # By kind: since when it counts, lines let through, lines left out.
        self._kinds: dict[tuple[str, int, str], tuple[float, int, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if len(self._kinds) >= KINDS_MAX:
            self._kinds.clear()
        kind = record.name, record.levelno, str(record.msg)
        since, written, left_out = self._kinds.get(kind, (record.created, 0, 0))
        if not 0 <= record.created - since < WHILE_S:
            since, written = record.created, 0
        if written >= LINES_PER_KIND:
            self._kinds[kind] = since, written, left_out + 1
            return False
        if left_out:
            record.msg = f"{record.getMessage()} (and {left_out} more like it before, left out)"
            record.args = ()
        self._kinds[kind] = since, written + 1, 0
        return True


class _LineFormatter(logging.Formatter):
    """Time in UTC, level, logger, message. A traceback keeps its lines, each one escaped."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        head = f"{moment}.{int(record.msecs):03d}Z {record.levelname:<7} {record.name}"
        lines = [f"{head}: {one_line(record.getMessage())}"]
        if record.exc_info:
            lines += [f"    {one_line(line)}" for line in self.formatException(record.exc_info).splitlines()]
        return "\n".join(lines)


def log_to_stderr(level: str) -> None:
    """From now on the loggers of Penstock and of asyncio write to standard error from this level on."""
    handler = logging.StreamHandler()
    handler.setFormatter(_LineFormatter())
    handler.addFilter(_NotTooOften())
    for name in ("penstock", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False
