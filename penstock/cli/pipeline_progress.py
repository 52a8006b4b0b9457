"""What a job is doing, on a terminal, in a log or as JSON: one mechanism for all Spark commands.

    with showing() as progress:
        progress.say("starting Spark")        a phase: what the command waits for now
        progress.step("counting keys")        a step of the job; with JSON an object
        progress.batch(batch)                 a finished batch: rows, rate, lag, ETA; with JSON an object
        progress.note("out failed: ...")      a line that stays

Rules: people read standard error, programs standard output. On a terminal there is one line, or one for each of
several queries, which changes in place, never wraps, and shows that time passes. Elsewhere a phase is a line, a batch
is a line every few seconds, and while nothing new happens the last line comes again, less and less often.

`Progress` is called in the job's thread, `stopping` also by a signal handler: the view's own thread prints it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.clients import echo_json
from penstock.cli.escaping import one_line
from penstock.runtime import Clock, SystemClock

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.spark.progress import Batch

# Off a terminal: between two batches that are shown, and until the last line is repeated for the first time.
LINE_S = 5.0
TICK_S = 0.2
LIVE_PER_SECOND = 8


@dataclass(slots=True)
class _Line:
    """What one query, or the command, did last. `is_done`: a finished batch, not something that is under way."""

    text: str
    since_ms: int
    is_done: bool = False
    # Off a terminal: whether it was printed, and when it is printed (again).
    is_shown: bool = False
    due_ms: int = 0


class Progress:
    """See the module's text. `showing` makes and closes it."""

    def __init__(self, *, as_json: bool = False, clock: Clock | None = None) -> None:
        self._as_json = as_json
        clock = clock or SystemClock()
        self._is_live = not as_json and sys.stderr.isatty()
        self._view: _Lines | _Terminal = _Terminal(clock) if self._is_live else _Lines(clock)
        # What is said once the job is asked to stop.
        self.stopping = "stopping"

    def say(self, text: str) -> None:
        self._view.show("", one_line(text))

    def step(self, text: str) -> None:
        if self._as_json:
            self._event({"event": "step", "text": text})
        else:
            self.say(text)

    def batch(self, batch: Batch) -> None:
        # A line of a log has room for the queues that are furthest behind.
        self.done(batch.json(), batch.line(queues=not self._is_live), batch.query)

    def done(self, facts: Mapping[str, Any], text: str, name: str = "") -> None:
        """A finished part of the job, as facts for programs and as a line."""
        if self._as_json:
            self._event(facts)
        else:
            self._view.show(name or "batches", one_line(text), is_done=True)

    def _event(self, facts: Mapping[str, Any]) -> None:
        self._view.clear()
        echo_json(facts, lines=True)

    def note(self, text: str) -> None:
        self._view.note(one_line(text))

    def stop_asked(self) -> None:
        """May be called by a signal handler."""
        self._view.urgent = self.stopping

    def close(self) -> None:
        """The last batches stay on the screen; nothing is printed after this."""
        self._view.close()


@contextmanager
def showing(*, as_json: bool = False) -> Iterator[Progress]:
    """Progress for as long as the block runs."""
    progress = Progress(as_json=as_json)
    try:
        yield progress
    finally:
        progress.close()


def _named(lines: Mapping[str, _Line], name: str) -> str:
    """The line, after the name of its query where there are several."""
    line = lines[name]
    several = sum(item.is_done for item in lines.values()) > 1
    return f"{name}  {line.text}" if line.is_done and several else line.text


class _View:
    """The lines, and a thread that looks at them a few times a second. `urgent` is printed by that thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines: dict[str, _Line] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-progress", daemon=True)
        self.urgent = ""

    def _run(self) -> None:
        while not self._closed.wait(TICK_S):
            self._tick()

    def _tick(self) -> None:
        text, self.urgent = self.urgent, ""
        if text:
            self.show("", text)

    def show(self, name: str, text: str, *, is_done: bool = False) -> None:
        raise NotImplementedError

    def clear(self) -> None:
        """Nothing is under way that should be shown."""
        with self._lock:
            self._lines.clear()

    def _end(self) -> bool:
        """Stop the thread; whether this was the first time."""
        if self._closed.is_set():
            return False
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        return True


class _Lines(_View):
    """Plain lines on standard error."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._thread.start()

    def show(self, name: str, text: str, *, is_done: bool = False) -> None:
        now = self._clock.monotonic_ms()
        with self._lock:
            before = self._lines.get(name)
            line = self._lines[name] = _Line(text, now, is_done)
            if is_done:
                self._lines.pop("", None)  # the phase before the batches has ended
            else:
                self._print_held(now)
            if is_done and before is not None and before.due_ms > now:
                line.due_ms = before.due_ms  # soon, with what is newest then
            else:
                self._print(name, line, now)

    def _print(self, name: str, line: _Line, now: int) -> None:
        passed = (now - line.since_ms) // 1000
        age = f"  ({passed} s{' ago' if line.is_done else ''})" if line.is_shown else ""
        click.echo(_named(self._lines, name) + age, err=True)
        line.is_shown = True
        # Later and later: nothing new for a day is less than a hundred lines.
        line.due_ms = now + max(int(LINE_S * 1000), (now - line.since_ms) // 10)

    def _print_held(self, now: int) -> None:
        """Batches that wait for their turn."""
        for name, line in self._lines.items():
            if line.is_done and not line.is_shown:
                self._print(name, line, now)

    def _tick(self) -> None:
        super()._tick()
        now = self._clock.monotonic_ms()
        with self._lock:
            for name, line in self._lines.items():
                if now >= line.due_ms:
                    self._print(name, line, now)

    def note(self, text: str) -> None:
        with self._lock:
            click.echo(text, err=True)

    def close(self) -> None:
        if not self._end():
            return
        if self.urgent:
            click.echo(self.urgent, err=True)
        self._print_held(self._clock.monotonic_ms())


class _Terminal(_View):
    """Lines that change in place."""

    def __init__(self, clock: Clock) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        super().__init__(clock)
        self._began_ms = clock.monotonic_ms()
        self._spinner = Spinner("dots")
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._live = Live(
            console=self._console,
            get_renderable=self._drawn,
            refresh_per_second=LIVE_PER_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def show(self, name: str, text: str, *, is_done: bool = False) -> None:
        with self._lock:
            if is_done:
                self._lines.pop("", None)
            self._lines[name] = _Line(text, self._clock.monotonic_ms(), is_done)
        if not self._live.is_started:
            self._live.start()
            self._thread.start()

    def _drawn(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        passed_s = (self._clock.monotonic_ms() - self._began_ms) // 1000
        with self._lock:
            names = sorted(name for name, line in self._lines.items() if line.is_done)
            if len(names) < 2:  # one line, with what is newest
                names = sorted(self._lines, key=lambda name: self._lines[name].since_ms)[-1:]
            texts = [_named(self._lines, name) for name in names]
        if not texts:
            return Text("")
        spinner = str(self._spinner.render(self._console.get_time()))
        lead = Text(f"{spinner} {passed_s // 60}:{passed_s % 60:02d}  ")
        lines = [Text(f"{'':{lead.cell_len}}{text}") for text in texts[:-1]]
        lines.append(Text.assemble(lead, texts[-1]))
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        return Group(*lines)

    def note(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(text))

    def close(self) -> None:
        from rich.text import Text

        if not self._end():
            return
        self._live.stop()
        for name, line in self._lines.items():
            if line.is_done:
                self._console.print(Text(_named(self._lines, name), no_wrap=True, overflow="ellipsis"))
