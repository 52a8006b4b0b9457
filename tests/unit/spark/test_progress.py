"""Lines and objects of progress, from events as Spark writes them."""

import json

import pytest

from penstock.spark.progress import Batch, duration, short


def event(**changed: object) -> dict[str, object]:
    """A progress event as the JVM writes it, of a source with two queues."""
    return {
        "id": "c0ffee00-0000-0000-0000-000000000001",
        "name": "archive",
        "timestamp": "2025-01-31T15:00:00.000Z",
        "batchId": 12,
        "numInputRows": 150_000,
        "inputRowsPerSecond": 99.0,
        "processedRowsPerSecond": 142_000.0,
        "durationMs": {"addBatch": 900, "triggerExecution": 1_056, "latestOffset": 3},
        "sources": [
            {
                "description": "PenstockDataSource",
                "startOffset": {"orders/a/0": 0, "orders/a/1": 0},
                "endOffset": {"orders/a/0": 75_000, "orders/a/1": 75_000},
                "latestOffset": {"orders/a/0": 1_275_000, "orders/a/1": 75_100},
                "numInputRows": 150_000,
            }
        ],
        "observedMetrics": {},
        **changed,
    }


def test_a_batch_in_a_line() -> None:
    assert Batch.of(event()).line() == "batch 12  +150,000 rows  142k rows/s  lag 1.2M  ETA 8 s"


def test_the_queues_that_are_behind_are_named_on_request() -> None:
    line = Batch.of(event()).line(queues=True)
    assert "lag 1.2M (orders/a/0 1.2M, orders/a/1 100)" in line


def test_offsets_may_come_as_text() -> None:
    """Py4J hands them over as the JSON that the source gave."""
    source = event()["sources"][0]
    texts = {name: json.dumps(source[name]) for name in ("startOffset", "endOffset", "latestOffset")}
    assert Batch.of(event(sources=[source | texts])).lag == 1_200_100


def test_a_source_that_tells_no_end_has_no_lag() -> None:
    source = {"description": "rate", "endOffset": 17, "latestOffset": 20, "numInputRows": 3}
    batch = Batch.of(event(sources=[source], numInputRows=3))
    assert batch.lag is None
    assert batch.line() == "batch 12  +3 rows  3 rows/s"


def test_lags_of_several_sources_add_up_by_queue() -> None:
    source = {"endOffset": {"t/b/0": 5}, "latestOffset": {"t/b/0": 9, "t/b/1": 4}}
    batch = Batch.of(event(sources=[source, source]))
    assert batch.queue_lags == {"t/b/0": 8, "t/b/1": 8}
    assert batch.lag == 16


def test_a_source_ahead_of_what_it_last_saw_lags_by_nothing() -> None:
    source = {"endOffset": {"t/b/0": 9}, "latestOffset": {"t/b/0": 5}}
    assert Batch.of(event(sources=[source])).lag == 0


def test_nothing_read_is_told_without_a_rate() -> None:
    assert Batch.of(event(numInputRows=0, sources=[])).line() == "batch 12  +0 rows"


def test_for_programs_it_is_an_object() -> None:
    found = Batch.of(event()).json()
    assert json.loads(json.dumps(found)) == {
        "event": "batch",
        "query": "archive",
        "batch": 12,
        "rows": 150_000,
        "rows_per_second": 142_045.5,
        "seconds": 1.056,
        "lag": 1_200_100,
        "timestamp": "2025-01-31T15:00:00.000Z",
        "queues": {"orders/a/0": 1_200_000, "orders/a/1": 100},
    }


@pytest.mark.parametrize(
    "progress", [{}, {"sources": None, "durationMs": None}, {"batchId": None, "name": None}]
)
def test_an_event_with_little_in_it_is_no_error(progress: dict[str, object]) -> None:
    batch = Batch.of(progress)
    assert (batch.batch, batch.rows, batch.lag, batch.query) == (0, 0, None, "")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (873, "873"),
        (999.4, "999"),
        (999.6, "1.0k"),
        (1_234, "1.2k"),
        (12_345, "12.3k"),
        (142_045, "142k"),
        (999_960, "1.0M"),
        (1_200_100, "1.2M"),
        (7e9, "7.0G"),
    ],
)
def test_numbers_are_short(number: float, text: str) -> None:
    assert short(number) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.1, "1 s"), (8.4, "8 s"), (100, "2 min"), (9_000, "2.5 h")])
def test_times_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text
