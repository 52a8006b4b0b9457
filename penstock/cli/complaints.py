"""Standard error of the commands: complaints, and on a terminal what is awaited.

Rule: off a terminal a complaint is one line. On a terminal it is broken between words, and a wait of more than a
second shows what is awaited; the line is gone when the wait ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from penstock.cli.escaping import one_line

AWAITED_AFTER_S = 1.0
_NARROWEST = 40
_ERASE_LINE = "\r\x1b[2K"


def complain(message: str) -> None:
    """Say what is wrong, and what to do next."""
    note(f"penstock: {message}")


def note(message: str) -> None:
    """Say what is to be known about the outcome."""
    text = one_line(message)
    if width := _terminal_width():
        from textwrap import wrap

        text = "\n".join(
            wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        )
    click.echo(text, err=True)


@contextmanager
def awaiting(what: str) -> Iterator[None]:
    """While the block runs for more than a second, a terminal shows what it waits for."""
    width = _terminal_width()
    if not width or os.environ.get("TERM", "dumb") == "dumb":
        yield
        return
    from threading import Event, Timer

    shown = Event()

    def show() -> None:
        shown.set()
        _write(_ERASE_LINE + one_line(what)[: width - 1])

    timer = Timer(AWAITED_AFTER_S, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if shown.is_set():
            _write(_ERASE_LINE)


@contextmanager
def showing_warnings() -> Iterator[None]:
    """What the client warns of while the block runs is complained of: the client keeps trying, and the command would
    only seem to wait."""
    import logging

    class Complaining(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            complain(record.getMessage())

    handler, logger = Complaining(logging.WARNING), logging.getLogger("penstock.client")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _terminal_width() -> int:
    """Columns of the terminal that standard error is; 0 if it is none."""
    try:
        if not sys.stderr.isatty():
            return 0
        return max(os.get_terminal_size(sys.stderr.fileno()).columns, _NARROWEST)
    except (OSError, ValueError):
        return 0
