"""Replays through a real Spark and a real broker: the right rows, once, in order, whatever interrupts them."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click.testing
import pytest
from pyspark.errors import PySparkException

from penstock.cli import pipeline_session
from penstock.cli.main import root
from penstock.errors import GapError, OptionError, PenstockError
from penstock.runtime import Runtime
from penstock.spark.pipelines.archive import archive
from penstock.spark.pipelines.archive_commit import commit_batch
from penstock.spark.pipelines.archive_files import FileSettings, StagedFiles
from penstock.spark.pipelines.audit_sources import Source
from penstock.spark.pipelines.replay import ReplaySettings, replay
from penstock.testing import ManualClock
from tests.effort import by_length
from tests.spark.processes import quick_start
from tests.support.archive_rows import SCHEMA, batch_of, places

SMALL = ReplaySettings(slice_rows=150)
ROWS = 240
ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300.0


@pytest.fixture(scope="module")
def orders(node) -> str:
    """4 queues of 60 messages, which no test changes."""
    topic = node.topic("orders")
    for queue in range(4):
        node.send(
            topic,
            [
                {"body": f"{queue}-{n}", "tag": "AB"[n % 2], "keys": [f"k{n % 10}", f"q{queue}"]}
                | {"properties": {"n": str(n), "colour": "red"}}
                for n in range(60)
            ],
            queue_id=queue,
        )
    return topic


def run(spark, node, source, target, **options):
    return replay(source, target, nameserver=node.address, spark=spark, **{"settings": SMALL, **options})


def rows_in(spark, node, topic):
    """What is in a topic, by queue and offset."""
    frame = spark.read.format("penstock").option("nameserver", node.address).option("topic", topic).load()
    return frame.orderBy("queue_id", "queue_offset").collect()


def bodies(rows):
    return [bytes(row.body).decode() for row in rows]


@pytest.mark.invariant("I2", "I3")
def test_a_topic_is_replayed_once_unchanged_and_in_order(spark, node, orders):
    target = node.topic("again")
    steps = []
    result = run(spark, node, f"log:{orders}", target, report=steps.append)
    assert (result.rows, result.added, result.exit_code) == (ROWS, ROWS, 0)
    assert (result.verified.rows, result.verified.origins, result.verified.disorder) == (ROWS, ROWS, 0)
    assert sum(step.rows for step in steps) == steps[-1].rows_done == ROWS
    assert len(steps) == result.slices > 1
    before, after = rows_in(spark, node, orders), rows_in(spark, node, target)
    assert bodies(after) == bodies(before)
    for old, new in zip(before, after, strict=True):
        assert (new.queue_id, new.keys, new.tags) == (old.queue_id, old.keys, old.tags)
        kept = dict(new.properties)
        assert (kept["n"], kept["colour"]) == (old.properties["n"], "red")
        assert kept["REPLAY_ID"] == result.id
        place = (kept["REPLAY_TOPIC"], kept["REPLAY_QUEUE"], kept["REPLAY_OFFSET"])
        assert place == (orders, str(old.queue_id), str(old.queue_offset))
        assert kept["REPLAY_MESSAGE_ID"] == old.message_id != new.message_id
        assert int(kept["REPLAY_STORE_MS"]) <= int(new.store_time.timestamp() * 1000)
        assert int(kept["REPLAY_BORN_MS"]) == round(old.born_time.timestamp() * 1000)


@pytest.mark.invariant("I15")
def test_a_checkpoint_goes_on_and_a_second_run_adds_nothing(spark, node, orders, tmp_path):
    target, kept = node.topic("resumed"), tmp_path / "check"
    asked = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 1

    first = run(spark, node, f"log:{orders}", target, checkpoint=kept, stop=stop)
    assert first.stopped
    assert 0 < first.added < ROWS
    # Killed after the broker published a slice and before that was noted: it is sent again, and added once.
    progress = json.loads((kept / "progress.json").read_text())
    assert progress["slices"] == 1
    for path in kept.glob("progress.json*"):
        path.unlink()
    second = run(spark, node, f"log:{orders}", target, checkpoint=kept)
    assert (second.id, second.added, second.exit_code) == (first.id, ROWS, 0)
    assert sorted(bodies(rows_in(spark, node, target))) == sorted(bodies(rows_in(spark, node, orders)))
    third = run(spark, node, f"log:{orders}", target, checkpoint=kept)
    assert (third.finished_before, third.added, third.verified.rows) == (True, 0, ROWS)
    assert len(rows_in(spark, node, target)) == ROWS
    with pytest.raises(OptionError, match="another replay: where changed"):
        run(spark, node, f"log:{orders}", target, checkpoint=kept, where="true")


@pytest.mark.invariant("I15")
def test_queues_that_come_while_it_runs_are_not_replayed(spark, node, tmp_path):
    source, target, kept = node.topic("growing", 1), node.topic("of-a-growing", 1), tmp_path / "check"
    node.send(source, [f"old-{n}" for n in range(8)], queue_id=0)
    settings, asked = replace(SMALL, slice_rows=4), []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 1

    first = run(spark, node, f"log:{source}", target, checkpoint=kept, settings=settings, stop=stop)
    assert (first.rows, first.added, first.stopped) == (8, 4, True)
    node.admin.create_topic(source, 2)
    node.send(source, [f"new-{n}" for n in range(5)], queue_id=1)
    again = run(spark, node, f"log:{source}", target, checkpoint=kept, settings=settings)
    assert (again.added, again.problems) == (4, ())
    assert bodies(rows_in(spark, node, target)) == [f"old-{n}" for n in range(8)]


def test_a_slice_that_shrank_is_not_published_unless_gaps_are_skipped(spark, node, orders, tmp_path):
    target, kept = node.topic("shrunk"), tmp_path / "check"
    spark.range(1).createOrReplaceTempView("open_for_all")
    # As a predicate over the time: true while it is counted, and for half of the rows later.
    where = "queue_offset < 30 or exists (select 1 from open_for_all)"

    def close(step) -> None:
        if step.slice == 0:
            spark.range(0).createOrReplaceTempView("open_for_all")

    settings = replace(SMALL, slice_rows=40)
    told: list[str] = []
    options = {"where": where, "checkpoint": kept, "tell": told.append}
    with pytest.raises(PenstockError, match=r"had \d+ rows when it was counted.*--skip-gaps"):
        run(spark, node, f"log:{orders}", target, settings=settings, report=close, **options)
    noted = json.loads((kept / "progress.json").read_text())["rows"]
    assert len(rows_in(spark, node, target)) == noted
    result = run(spark, node, f"log:{orders}", target, settings=replace(settings, on_gap="skip"), **options)
    assert (result.problems, result.stopped) == ((), False)
    assert result.verified.rows == len(rows_in(spark, node, target)) == noted + result.added < ROWS
    assert any("less than were counted" in line for line in told)


def killed_in_the_middle(node, source: str, target: str, kept: Path, log: Path, all_of_it: bool) -> None:
    """A replay as a process of its own, until some slices are noted; then kill -9: of the driver, whose JVM lives on
    for a second or two and may still publish, or of everything at once."""
    line = [sys.executable, "-m", "penstock.cli.main", "pipeline", "replay", source, "--to", target]
    line += [
        "--nameserver",
        node.address,
        "--checkpoint",
        str(kept),
        "--slice-rows",
        "20",
        "--master",
        "local[1]",
        *quick_start(),
    ]
    before, deadline = slices_noted(kept), time.monotonic() + LIMIT_S
    with open(log, "ab") as out:
        process = subprocess.Popen(line, stdout=out, stderr=out, cwd=ROOT, start_new_session=True)
    try:
        while slices_noted(kept) < before + 2:
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.01)
    finally:
        if all_of_it:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait()


def slices_noted(kept: Path) -> int:
    try:
        return int(json.loads((kept / "progress.json").read_text())["slices"])
    except FileNotFoundError:
        return 0


@pytest.mark.fault("F1")
@pytest.mark.invariant("I2", "I15")
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(0)
def test_a_replay_of_an_archive_that_is_killed_goes_on_without_loss_and_repeat(spark, node, orders, tmp_path):
    root_of_all, kept, target = tmp_path / "archive", tmp_path / "check", node.topic("killed")
    archive(orders, str(root_of_all), spark=spark, nameserver=node.address, once=True, merge=False)
    source = f"archive:{root_of_all}"
    # A plan of twelve slices: there is something left to do after four lives.
    for number in range(by_length(1, 4)):
        killed_in_the_middle(node, source, target, kept, tmp_path / "replay.log", all_of_it=number % 2 == 1)
    plan, noted = json.loads((kept / "plan.json").read_text()), slices_noted(kept)
    assert 2 <= noted < len(plan["slices"])
    there = bodies(rows_in(spark, node, target))
    assert 0 < len(there) == len(set(there)) < ROWS
    steps = []
    result = run(spark, node, source, target, checkpoint=kept, report=steps.append)
    assert (result.id, result.rows, result.exit_code) == (plan["id"], ROWS, 0)
    # What was noted is not sent again; what was sent and not noted is, and is there once.
    assert len(steps) == len(plan["slices"]) - noted
    assert (result.verified.rows, result.verified.origins, result.verified.disorder) == (ROWS, ROWS, 0)
    before, after = rows_in(spark, node, orders), rows_in(spark, node, target)
    assert bodies(after) == bodies(before)
    again = run(spark, node, source, target, checkpoint=kept)
    assert (again.finished_before, again.added, again.verified.rows) == (True, 0, ROWS)
    assert len(rows_in(spark, node, target)) == ROWS


def test_holes_of_an_archive_are_an_error_unless_gaps_are_skipped(spark, node, tmp_path):
    to, target, told = tmp_path / "archive", node.topic("of-holes"), []
    files = StagedFiles(to, "task", FileSettings(), SCHEMA)
    files.write(batch_of(places(0, [0, 1, 2, 7, 8]) + places(1, range(4))))
    commit_batch(to, files.finish(), "query", 0)
    source = Source("archive", str(to))
    with pytest.raises(GapError, match=r"lacks 4 messages: orders/broker-a/0 3 to 6.*--skip-gaps"):
        run(spark, node, source, target)
    with pytest.raises(GapError, match="lacks 4 messages"):
        run(spark, node, source, target, dry_run=True)
    assert rows_in(spark, node, target) == []
    result = run(spark, node, source, target, settings=replace(SMALL, on_gap="skip"), tell=told.append)
    assert (result.rows, result.added, result.problems) == (9, 9, ())
    assert any("0 3 to 6; they are left out" in line for line in told)


def test_a_store_directory_by_key_tag_and_predicate(spark, node, orders):
    target = node.topic("some", 2)
    source = Source("store", str(node.directory), topics=(orders,))
    dry = run(spark, node, source, target, tags=["A"], keys=["k2", "k4"], where="queue_id < 3", dry_run=True)
    assert (dry.rows, dry.dry_run, rows_in(spark, node, target)) == (36, True, [])
    assert [row["rows"] for row in dry.queues] == [12, 12, 12]
    assert (len(dry.samples), dry.samples[0]["body"]) == (10, "0-2")
    result = run(spark, node, source, target, tags=["A"], keys=["k2", "k4"], where="queue_id < 3")
    assert (result.rows, result.added, result.problems) == (36, 36, ())
    after = rows_in(spark, node, target)
    assert {row.queue_id for row in after} == {0, 1}
    assert sorted(bodies(after)) == sorted(
        f"{q}-{n}" for q in range(3) for n in range(60) if n % 10 in (2, 4)
    )
    assert "REPLAY_BROKER" not in dict(after[0].properties)


def test_by_key_the_key_chooses_the_queue(spark, node, orders):
    target = node.topic("keyed", 4)
    result = run(spark, node, f"log:{orders}", target, by_key=True, where="keys like 'k1 %'")
    assert (result.rows, result.problems) == (24, ())
    by_keys = {}
    for row in rows_in(spark, node, target):
        by_keys.setdefault(row.keys, set()).add(row.queue_id)
    assert {len(queues) for queues in by_keys.values()} == {1}


def test_a_time_range_and_nothing_that_matches(spark, node, orders):
    target = node.topic("none")
    stored = max(row.store_time for row in rows_in(spark, node, orders)).timestamp()
    source = Source("log", nameserver=node.address, topics=(orders,), start=int(stored * 1000) + 60_000)
    result = run(spark, node, source, target)
    assert (result.rows, result.slices, result.added, result.exit_code) == (0, 0, 0, 0)
    assert run(spark, node, f"log:{orders}", target, where="body is null").rows == 0


def test_a_rate_holds_over_the_whole_replay(spark, node, orders):
    """The clock stands still but for sleeps: what was waited is what the rate asks for."""
    target = node.topic("paced")
    clock = ManualClock()
    began = clock.monotonic_ms()
    settings = ReplaySettings(rate=16.0, verify=False)
    runtime = replace(Runtime.system(), clock=clock)
    result = run(spark, node, f"log:{orders}", target, settings=settings, runtime=runtime)
    assert result.added == ROWS
    # Slices are of two seconds; the last begins when those before it are due.
    assert 8 <= result.slices <= 12
    assert (ROWS - 32) / 16.0 <= (clock.monotonic_ms() - began) / 1000 <= ROWS / 16.0
    assert len(rows_in(spark, node, target)) == ROWS


def test_bad_wishes_are_refused_before_anything_is_sent(spark, node, orders):
    target = node.topic("refused")
    with pytest.raises(OptionError, match=r"cannot be used.*columns topic"):
        run(spark, node, f"log:{orders}", target, where="no_such_column = 1")
    with pytest.raises(OptionError, match="cannot be used"):
        run(spark, node, f"log:{orders}", target, where="((")
    with pytest.raises(OptionError, match="no topic is called"):
        run(spark, node, "log:nothing-here", target)
    with pytest.raises(PenstockError):
        run(spark, node, f"log:{orders}", "no-such-target")
    with pytest.raises((PySparkException, PenstockError)):
        run(spark, node, f"log:{orders}", target, settings=replace(SMALL, sink={"noSuchOption": "1"}))
    with pytest.raises(OptionError, match="rate"):
        ReplaySettings(rate=0)
    assert rows_in(spark, node, target) == []


def test_the_command(spark, node, orders, monkeypatch, tmp_path):
    @contextmanager
    def session(app, master, conf, log=None):
        yield spark

    monkeypatch.setattr(pipeline_session, "spark_session", session)
    target = node.topic("told")

    def command(*more):
        arguments = [
            "pipeline",
            "replay",
            f"log:{orders}",
            "--to",
            target,
            "--nameserver",
            node.address,
            *more,
        ]
        return click.testing.CliRunner().invoke(root, arguments, prog_name="penstock")

    dry = command("--dry-run", "--tag", "A")
    assert dry.exit_code == 0, dry.output
    assert "would send 120 messages" in dry.output
    assert "0-0" in dry.output
    done = command("--tag", "A", "--json", "--checkpoint", str(tmp_path / "check"))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert (lines[-1]["event"], lines[-1]["added"], lines[-1]["verified"]["rows"]) == ("result", 120, 120)
    assert {"step", "slice"} <= {line["event"] for line in lines}
    again = command("--tag", "A", "--checkpoint", str(tmp_path / "check"))
    assert "was finished before" in again.output
    assert "verified: 120 are there, each once" in again.output
    early = command("--tag", "A", "--from", "2h", "--checkpoint", str(tmp_path / "ago"), "--no-verify")
    late = command("--tag", "A", "--from", "2h", "--checkpoint", str(tmp_path / "ago"), "--no-verify")
    assert (early.exit_code, "was finished before" in late.output) == (0, True), early.output + late.output
    refused = command("--where", "nonsense(")
    assert (refused.exit_code, len(refused.output.splitlines())) == (
        2,
        1,
    ) or "cannot be used" in refused.output
