"""How many rows the sinks of a pipeline wrote in one run.

What a query observes of a batch is reported after the batch. Two things it does not know: a batch that was published
when the query was stopped is never reported, and the next run, which begins with that batch, publishes nothing of it.
The broker knows both: it keeps the number of the last batch that it published for a query, and how many messages that
had.

Rules: a sink of another kind has only what its query observed. A broker that does not answer leaves it at that.
Runs on the driver.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from penstock.client.staging import Home, Staging
from penstock.errors import PenstockError
from penstock.spark.pipelines.stream_file import PipelineFile, Sink, sink_checkpoint
from penstock.spark.preflight import reaching
from penstock.spark.progress import Batch
from penstock.spark.running import Run
from penstock.spark.sink_options import EXACTLY_ONCE, WriteOptions

logger = logging.getLogger(__name__)


class Written:
    """Made before the queries start; `count` takes their batches, `runs` has what they wrote in the end."""

    def __init__(self, file: PipelineFile) -> None:
        self._file = file
        self._rows = {sink.name: 0 for sink in file.sinks}
        # The last batch that is counted, or was published by an earlier run.
        self._last: dict[str, int] = {}
        for sink in file.sinks:
            self._last[sink.name] = _batch_of(self._published(sink))

    def count(self, batch: Batch) -> None:
        if batch.batch > self._last[batch.query]:
            self._last[batch.query] = batch.batch
            self._rows[batch.query] += batch.rows if batch.written is None else batch.written

    def runs(self, done: Mapping[str, Run]) -> dict[str, Run]:
        found = {}
        for sink in self._file.sinks:
            run = done[sink.name]
            if run.stopped:
                home = self._published(sink)
                if home is not None and _batch_of(home) > self._last[sink.name]:
                    self._rows[sink.name] += home.status.messages or 0
                    run = replace(run, batches=run.batches + 1)
            found[sink.name] = replace(run, written=self._rows[sink.name])
        return found

    def _published(self, sink: Sink) -> Home | None:
        """What the sink's query has published last; None if it is not known."""
        if not sink.is_ours:
            return None
        options = WriteOptions.parse(sink.options)
        query = _query_id(sink_checkpoint(self._file, sink.name))
        if not query or options.delivery != EXACTLY_ONCE:
            return None
        try:
            with (
                reaching(options.nameserver, options.access) as settings,
                Staging(options.nameserver, retry_ms=0, **settings) as staging,
            ):
                return staging.home(query, options.topic, options.broker)
        except PenstockError as error:
            logger.info("batches of %s are counted as far as they were reported: %s", sink.name, error)
            return None


def _batch_of(home: Home | None) -> int:
    """The number of the last batch that is published there; -1 before the first, and where it is not known."""
    return -1 if home is None or home.status.batch_id is None else home.status.batch_id


def _query_id(checkpoint: str) -> str:
    """Of Spark's own file; empty before the first start, and for a checkpoint elsewhere."""
    try:
        found = json.loads(Path(checkpoint, "metadata").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return str(found.get("id", "")) if isinstance(found, dict) else ""
