"""Ctrl-C at a chosen moment of each Spark job, with the session of the tests.

It exits 130 with a line that says how to resume, and prints nothing that only a developer of Spark would read.
`test_pipeline_signals` does the same to processes with a JVM of their own.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click.testing
import pytest
from pyspark.errors import PySparkException

from penstock.cli import pipeline_session
from penstock.cli.main import root
from penstock.cli.pipeline_progress import Progress
from penstock.spark import archived_ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Node

ROWS = 120
START, FIRST_BATCH, END = "start", "a batch", "stopping Spark"
RESUME = "run the same command to resume"


class Jobs:
    """`penstock pipeline ...` in this process. With `interrupt`, as if Ctrl-C were pressed at that moment."""

    def __init__(
        self, spark: SparkSession, node: Node, monkeypatch: pytest.MonkeyPatch, folder: Path
    ) -> None:
        self._spark, self._address, self._log = spark, node.address, folder / "spark.log"
        self._moment = ""
        monkeypatch.setattr(pipeline_session, "spark_session", self._session)
        for name in ("say", "step", "done"):
            monkeypatch.setattr(Progress, name, self._watched(name, getattr(Progress, name)))

    @contextmanager
    def _session(
        self, app: str, master: str | None, conf: Any, log: Path | None = None
    ) -> Iterator[SparkSession]:
        self._reached(START)
        try:
            with pipeline_session.logging_to(self._log):
                yield self._spark
        except PySparkException as error:
            raise pipeline_session.told(error, None) from error

    def _watched(self, name: str, call: Callable[..., None]) -> Callable[..., None]:
        def watched(progress: Progress, *said: Any, **more: Any) -> None:
            call(progress, *said, **more)
            self._reached(FIRST_BATCH if name == "done" else said[0])

        return watched

    def _reached(self, moment: str) -> None:
        if self._moment and moment.startswith(self._moment):
            self._moment = ""
            os.kill(os.getpid(), signal.SIGINT)

    def run(self, *arguments: object, interrupt: str = "") -> click.testing.Result:
        self._moment = interrupt
        line = ["pipeline", *map(str, arguments), "--nameserver", self._address]
        done = click.testing.CliRunner().invoke(root, line, prog_name="penstock")
        assert not self._moment, f"{interrupt} never came: {done.output}"
        for noise in ("Traceback", "py4j", "org.apache", '"level"', "ERROR"):
            assert noise not in done.output, done.output
        return done

    def interrupted(self, *arguments: object, at: str, says: str) -> list[dict[str, Any]]:
        """The objects that it printed."""
        done = self.run(*arguments, "--json", interrupt=at)
        assert done.exit_code == 130, (done.output, done.exception)
        assert says in done.stderr or says in done.stdout, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]

    def ok(self, *arguments: object) -> dict[str, Any]:
        """The last object that it printed."""
        done = self.run(*arguments, "--json")
        assert done.exit_code == 0, (done.output, done.exception)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


@pytest.fixture
def jobs(spark: SparkSession, node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Jobs:
    return Jobs(spark, node, monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def orders(node: Node) -> str:
    topic = node.topic("orders", 2)
    for queue in range(2):
        numbers = range(queue, ROWS, 2)
        node.send(
            topic, [{"body": b"%d" % number, "keys": f"k{number}"} for number in numbers], queue_id=queue
        )
    return topic


@pytest.mark.spark
def test_an_interrupted_archive_ends_with_130_and_resumes(jobs: Jobs, orders: str, tmp_path: Path) -> None:
    to = tmp_path / "archive"
    line = ("archive", "--topic", orders, "--to", to, "--once", "--max-rows", 40)
    for early in ("checking", START):
        assert jobs.interrupted(*line, at=early, says=f"interrupted; {RESUME}") == []
        assert not to.exists()
    *_, last = jobs.interrupted(*line, at=FIRST_BATCH, says="stopping after this batch")
    assert (last["event"], last["stopped"]) == ("done", True)
    assert 0 < last["rows"] < ROWS
    *_, late = jobs.interrupted(*line, at=END, says="stopp")
    assert late["rows"] == ROWS - last["rows"]
    assert jobs.ok(*line)["rows"] == 0
    assert sum(end - first + 1 for runs in archived_ranges(to).values() for first, end in runs) == ROWS


@pytest.mark.spark
def test_an_interrupted_replay_ends_with_130_and_resumes(
    jobs: Jobs, node: Node, orders: str, tmp_path: Path
) -> None:
    target, kept = node.topic("again", 2), tmp_path / "kept"
    line = ("replay", f"log:{orders}", "--to", target, "--slice-rows", 20)
    with_checkpoint = (*line, "--checkpoint", kept)
    resume = f"run the same command with --checkpoint {kept} to resume"
    for early in ("checking", START):
        jobs.interrupted(*with_checkpoint, at=early, says=resume)
        assert not kept.exists()
    *_, last = jobs.interrupted(*with_checkpoint, at=FIRST_BATCH, says="stopping after this slice")
    assert last["stopped"]
    assert 0 < last["added"] < ROWS
    done = jobs.ok(*with_checkpoint)
    assert (done["added"], done["verified"]["rows"]) == (ROWS - last["added"], ROWS)
    told = jobs.run(*line, interrupt=FIRST_BATCH)
    assert told.exit_code == 130
    assert "without --checkpoint this cannot resume" in " ".join(told.stdout.split())


@pytest.mark.spark
def test_an_interrupted_audit_ends_with_130_and_leaves_no_report(
    jobs: Jobs, orders: str, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    line = ("audit", f"log:{orders}", "--out", out, "--observe", "1h")
    for at in ("checking", START, "reading", "looking at order", "watching the groups"):
        jobs.interrupted(*line, at=at, says=f"no report was written to {out}; run the same command again")
        assert not out.exists()


@pytest.mark.spark
def test_an_interrupted_compact_ends_with_130_and_resumes(jobs: Jobs, orders: str, tmp_path: Path) -> None:
    to = tmp_path / "latest"
    line = ("compact", "--topic", orders, "--to", to, "--once", "--max-bytes", 2_000)
    for early in ("checking", START):
        jobs.interrupted(*line, at=early, says=f"interrupted; {RESUME}")
        assert not to.exists()
    wrong = jobs.run(*line, "--key", "no_such_column")
    assert (wrong.exit_code, "`no_such_column` cannot be resolved" in wrong.stderr) == (2, True)
    assert "Project" not in wrong.stderr, "the plan is no help"
    assert not to.exists()
    *_, last = jobs.interrupted(*line, at=FIRST_BATCH, says="stopping after this batch")
    assert last["stopped"]
    assert 0 < last["rows"] < ROWS
    assert jobs.ok(*line, "--max-bytes", "1M")["keys"] == ROWS


FILE = """\
[sources.orders]
topic = "{topic}"
max_rows = 40
[steps.few]
sql = "select body from orders where queue_offset < 10"
[sinks.few]
from = "few"
topic = "{target}"
"""


@pytest.mark.spark
def test_an_interrupted_stream_ends_with_130_and_resumes_and_counts_what_it_wrote(
    jobs: Jobs, node: Node, orders: str, tmp_path: Path
) -> None:
    target, file = node.topic("few", 1), tmp_path / "p.toml"
    file.write_text(FILE.format(topic=orders, target=target))
    line = ("stream", "run", file, "--once")
    for early in ("checking", START):
        jobs.interrupted(*line, at=early, says=f"interrupted; {RESUME}")
        assert not (tmp_path / "p-checkpoint").exists()
    *_, last = jobs.interrupted(*line, at=FIRST_BATCH, says="stopping after this batch")
    assert (last["event"], last["query"]) == ("stopped", "few")
    rest = jobs.ok(*line)
    assert (rest["event"], rest["rows_read"] + last["rows_read"]) == ("done", ROWS)
    # Ten of each of two queues, of sixty.
    assert rest["rows"] + last["rows"] == 20
    told = jobs.run(*line)
    assert told.stdout.startswith("few: done, 0 rows in 0 batches, 0 read, ")
