"""Reading a line from a terminal, which Ctrl-C ends whenever it comes."""

from __future__ import annotations

import os
import pty
import random
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import IO

import pytest

from penstock.cli import signals
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


def test_an_interrupt_leaves_no_descriptor_open_wherever_it_comes() -> None:
    """At each line of the wait, one after the other, until the wait is over before its turn."""

    def interrupt(frame: FrameType, event: str, argument: object) -> object:
        nonlocal left
        if frame.f_code.co_filename != signals.__file__:
            return None
        left -= event == "line"
        if not left:
            raise KeyboardInterrupt
        return interrupt

    with terminal() as (typed, stream):
        opened, tracer = len(os.listdir("/proc/self/fd")), sys.gettrace()
        is_read, turn = False, 0
        while not is_read:
            os.write(typed, b"line\n")
            turn = left = turn + 1
            sys.settrace(interrupt)  # type: ignore[arg-type]
            try:
                is_read = bool(read_line(stream))
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(tracer)
            assert len(os.listdir("/proc/self/fd")) == opened, turn
        assert turn > 3


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
