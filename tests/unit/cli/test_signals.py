"""Reading a line from a terminal, which Ctrl-C ends whenever it comes."""

from __future__ import annotations

import os
import pty
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pytest

from penstock.cli.signals import read_line

ROUNDS = 300


@contextmanager
def terminal() -> Iterator[tuple[int, IO[str]]]:
    """Where one types, and what a command reads."""
    typed, read = pty.openpty()
    try:
        with os.fdopen(read, encoding="utf-8") as stream:
            yield typed, stream
    finally:
        os.close(typed)


def test_lines_are_read_as_they_were_typed() -> None:
    with terminal() as (typed, stream):
        os.write(typed, b"first\nsecond\n")
        assert (read_line(stream), read_line(stream, 3), stream.readline()) == ("first\n", "sec", "ond\n")


def test_an_interrupt_ends_the_wait_whenever_it_comes() -> None:
    chance = random.Random(7)
    with terminal() as (_, stream):
        for _ in range(ROUNDS):
            delay_s = chance.random() * 0.000_3
            timer = threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # it may come before the wait begins
                timer.start()
                read_line(stream)
            timer.join()


def test_a_signal_that_ends_nothing_does_not_end_the_wait() -> None:
    came: list[int] = []
    with terminal() as (typed, stream):

        def handle(number: int, frame: object) -> None:
            came.append(number)
            os.write(typed, b"later\n")

        before = signal.signal(signal.SIGUSR1, handle)
        try:
            timer = threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGUSR1))
            timer.start()
            assert read_line(stream) == "later\n"
            timer.join()
        finally:
            signal.signal(signal.SIGUSR1, before)
    assert came == [signal.SIGUSR1]
