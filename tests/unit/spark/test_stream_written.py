"""What a pipeline wrote: also a batch that was published when it was stopped, and no batch twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock.client.staging import Staging
from penstock.spark.pipelines.stream_file import PipelineFile, parse_pipeline
from penstock.spark.pipelines.stream_written import Written
from penstock.spark.progress import Batch
from penstock.spark.running import Run
from penstock.testing import broker
from tests.support.staged import item

QUERY = "0b5c3b1e-6b1c-4a55-9c1b-3f1f6f3f7a10"
FILE = """\
nameserver = "{address}"
checkpoint = "state"
[sources.orders]
topic = "orders"
[sinks.copies]
from = "orders"
topic = "T"
"""
# Has published a batch of so many messages.
Publish = Callable[[int, int], None]


@pytest.fixture
def address() -> Iterator[str]:
    with broker() as found, penstock.Admin(found) as admin:
        admin.create_topic("T", 4)
        yield found


@pytest.fixture
def file(address: str, tmp_path: Path) -> PipelineFile:
    kept = tmp_path / "state" / "copies"
    kept.mkdir(parents=True)
    (kept / "metadata").write_text(json.dumps({"id": QUERY}))
    return parse_pipeline(FILE.format(address=address), tmp_path / "p.toml")


@pytest.fixture
def publish(address: str) -> Iterator[Publish]:
    with Staging(address) as staging:

        def one(batch: int, messages: int) -> None:
            home = staging.home(QUERY, "T").broker
            items = b"".join(item(100 * batch + number) for number in range(messages))
            handle = staging.stage(home, [("T", 4)], items, messages)
            staging.publish(home, QUERY, batch, [handle])

        yield one


def batch(number: int, written: int | None) -> Batch:
    return Batch("copies", number, 10, 10.0, 1.0, 0, written=written)


def run_of(batches: int, *, stopped: bool = True) -> Run:
    return Run("copies", batches, 10 * batches, 1.0, 0, stopped)


def test_a_batch_that_was_published_when_the_query_was_stopped_counts(
    file: PipelineFile, publish: Publish
) -> None:
    publish(0, 3)
    written = Written(file)
    publish(1, 5)
    written.count(batch(1, 5))
    publish(2, 7)
    done = written.runs({"copies": run_of(1)})["copies"]
    assert (done.batches, done.rows, done.written) == (2, 10, 12)


def test_the_next_run_does_not_count_it_again(file: PipelineFile, publish: Publish) -> None:
    publish(0, 3)
    written = Written(file)
    # Spark runs the batch again, and the broker answers that it has it.
    written.count(batch(0, 3))
    publish(1, 5)
    written.count(batch(1, 5))
    assert written.runs({"copies": run_of(2)})["copies"].written == 5
    assert written.runs({"copies": run_of(2, stopped=False)})["copies"].written == 5


def test_a_sink_that_observes_nothing_wrote_what_it_read(file: PipelineFile) -> None:
    written = Written(file)
    written.count(batch(0, None))
    assert written.runs({"copies": run_of(1, stopped=False)})["copies"].written == 10


def test_without_a_broker_what_was_reported_counts(file: PipelineFile, tmp_path: Path) -> None:
    gone = parse_pipeline(FILE.format(address="127.0.0.1:1"), tmp_path / "p.toml")
    written = Written(gone)
    written.count(batch(0, 4))
    assert written.runs({"copies": run_of(1)})["copies"].written == 4
