"""One run of a Spark job: what it does is shown, Ctrl-C and SIGTERM end it well, and its exit status says so.

    with job.running("archive", resume="run the same command to resume") as running:
        running.say("asking 127.0.0.1:9876")        plain Python: an interrupt ends it at once
        with running.spark() as spark:              from here on a stop is a wish, which the job fulfils
            ...
    return running.exit_code

Rules: before Spark starts an interrupt is a KeyboardInterrupt; while Spark runs it never strikes Py4J, which would
print a traceback and lose the answer that it waits for. A job that waits for nothing is cancelled by another thread.
An interrupted job exits 130, however far it came; one without an end is meant to be stopped so, and exits 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from penstock.cli.escaping import one_line
from penstock.cli.signals import EXIT_INTERRUPTED
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.cli.pipeline_options import Job
    from penstock.cli.pipeline_progress import Progress
    from penstock.spark.running import Stop


# How long a stop waits for the batch at hand, before it is cancelled.
BATCH_WAIT_S = 15.0
AFTER_THE_BATCH = "stopping after this batch; Ctrl-C again stops at once"


class Running:
    """See the module's text. `running` makes it."""

    def __init__(self, job: Job, app: str, progress: Progress, resume: str, is_bounded: bool) -> None:
        from penstock.spark.running import Stop

        self._job, self._app, self._is_bounded = job, app, is_bounded
        self.progress = progress
        self.say = progress.say
        # What to do after an interruption; may say more once the job is under way.
        self.resume = resume
        self.stop: Stop = Stop(self._asked)
        self._is_plain = True

    def _asked(self) -> None:
        if self._is_plain:
            raise KeyboardInterrupt
        self.progress.stop_asked()

    def check(self, ask: Callable[[], None], where: str, *, resumes: bool = False) -> None:
        """Ask the cluster what the job will need of it, before Spark starts. A job without an end that has run before
        waits for brokers that are away, as it does when they go while it runs."""
        self.say(f"checking {where}")
        try:
            ask()
        except PenstockError as error:
            waits = error.retriable or error.route_stale
            if self._is_bounded or not resumes or not waits:
                raise
            self.progress.note(f"{error}; waiting for it, because this job has run before")

    def failed(self, name: str, reason: str, wait_s: float) -> None:
        """A query failed and is started again."""
        self.progress.note(f"{name} failed, restarting in {wait_s:g} s: {reason}")

    @property
    def exit_code(self) -> int:
        return EXIT_INTERRUPTED if self.stop.is_asked and self._is_bounded else 0

    @contextmanager
    def spark(self, patience_s: float = 0.0, stopping: str = "stopping") -> Iterator[SparkSession]:
        """A session until the block ends. A stop cancels Spark's jobs after `patience_s`, in which the block may
        finish what it is at; `stopping` says so."""
        from penstock.cli.pipeline_session import spark_session
        from penstock.spark.running import cancelling

        self._is_plain = False
        self.progress.stopping = "stopping as soon as Spark has started"
        self.say("starting Spark")
        with spark_session(self._app, self._job.master, self._job.conf) as session:
            self.stop.check()
            self.progress.stopping = stopping
            self.say("Spark is running")
            with cancelling(session, self.stop, patience_s):
                yield session
            self.say("stopping Spark")


@contextmanager
def running(job: Job, app: str, *, resume: str, is_bounded: bool) -> Iterator[Running]:
    """Show progress and take signals for as long as the block runs; an interruption ends the command with a line."""
    from penstock.cli.pipeline_progress import showing
    from penstock.spark import require_extra
    from penstock.spark.running import StoppedError, stopping_on_signals

    require_extra()
    with showing(as_json=job.as_json) as progress:
        made = Running(job, app, progress, resume, is_bounded)
        progress.say(f"{app}: checking")
        try:
            with stopping_on_signals(made.stop):
                yield made
        except (KeyboardInterrupt, StoppedError):
            progress.close()
            click.echo(one_line(f"interrupted; {made.resume}"), err=True)
            raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
