"""Log lines of the server commands: to standard error, one line each, safe for a terminal."""

from __future__ import annotations

import logging
import time

from penstock.cli.escaping import one_line


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
    for name in ("penstock", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False
