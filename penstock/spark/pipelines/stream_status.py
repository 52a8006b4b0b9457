"""How far a pipeline is, without Spark: out of its checkpoint, and of what the brokers say.

Spark keeps for each query `offsets/<batch>` (written before a batch: where it ends) and `commits/<batch>` (after it).
The last batch with both is done; one with offsets only is under way, or was cut off and will be run again.

    v1
    {"batchWatermarkMs": 0, "batchTimestampMs": 1738335600000, ...}
    {"orders/broker-a/0": 120, "orders/broker-a/1": 118}          one line per source, `-` for none

Rules: read only, and only files that Spark has finished (it renames them into place). Sources that are not ours
have offsets of another form; they are counted, not judged. A cluster that does not answer leaves the lag unknown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.client.access import FROM_ENVIRONMENT, Access, explaining
from penstock.errors import OptionError, PenstockError
from penstock.spark.pipelines.stream_file import PipelineFile, read_pipeline
from penstock.spark.pipelines.stream_run import running_pid, sink_checkpoint

# A queue's name to its end at the broker.
Ends = Callable[[Iterable[str]], dict[str, int]]


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """One sink. `batch` is the last one that is done, -1 before the first; `lag` is None where it is not known."""

    name: str
    view: str
    format: str
    batch: int = -1
    is_batch_open: bool = False
    batch_time_ms: int = 0
    watermark_ms: int = 0
    offsets: dict[str, int] = field(default_factory=dict)
    lag: int | None = None

    def json(self) -> dict[str, Any]:
        names = (
            "name",
            "view",
            "format",
            "batch",
            "is_batch_open",
            "batch_time_ms",
            "watermark_ms",
            "lag",
            "offsets",
        )
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """A pipeline. `pid` is the process that runs it here, None if none does; `trouble` why there is no lag."""

    name: str
    checkpoint: str
    pid: int | None
    sinks: tuple[SinkStatus, ...]
    trouble: str = ""


def pipeline_status(
    path: str | Path,
    *,
    nameserver: str | None = None,
    checkpoint: str | None = None,
    access: Access = FROM_ENVIRONMENT,
    ends: Ends | None = None,
) -> PipelineStatus:
    """Read a pipeline's checkpoint, and ask the brokers how much there is to do."""
    file = read_pipeline(path, nameserver=nameserver, checkpoint=checkpoint)
    if "://" in file.checkpoint:
        raise OptionError(
            f"the checkpoint {file.checkpoint} is not a directory of this machine",
            "mount it and give its path with --checkpoint, or look at the consumer group: penstock group describe",
        )
    found = [_sink_status(file, sink.name) for sink in file.sinks]
    ends = ends or _asking(file, access)
    sinks, trouble = [], ""
    for status in found:
        try:
            lag = _lag(status.offsets, ends(status.offsets)) if status.offsets else None
        except PenstockError as error:
            lag, trouble = None, str(error)
        sinks.append(_with_lag(status, lag))
    return PipelineStatus(file.name, file.checkpoint, running_pid(file.checkpoint), tuple(sinks), trouble)


def _with_lag(status: SinkStatus, lag: int | None) -> SinkStatus:
    from dataclasses import replace

    return replace(status, lag=lag)


def _sink_status(file: PipelineFile, name: str) -> SinkStatus:
    sink = next(item for item in file.sinks if item.name == name)
    folder = Path(sink_checkpoint(file, name))
    started, done = _batches(folder / "offsets"), _batches(folder / "commits")
    finished = [batch for batch in started if batch in set(done)]
    if not finished:
        return SinkStatus(name, sink.view, sink.format, is_batch_open=bool(started))
    batch = finished[-1]
    about, offsets = _read_offsets(folder / "offsets" / str(batch))
    return SinkStatus(
        name,
        sink.view,
        sink.format,
        batch,
        started[-1] > batch,
        int(about.get("batchTimestampMs") or 0),
        int(about.get("batchWatermarkMs") or 0),
        offsets,
    )


def _batches(folder: Path) -> list[int]:
    """Numbers of the finished files in one of Spark's logs."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def _read_offsets(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """What a batch says of itself, and the offsets of our sources at its end."""
    _, about, *sources = path.read_text(encoding="utf-8").splitlines() or ["", "{}"]
    offsets: dict[str, int] = {}
    for line in sources:
        found = _json(line)
        if found and all(type(number) is int and name.count("/") == 2 for name, number in found.items()):
            # Two sources of one topic: the one that is further behind counts.
            offsets |= {name: min(number, offsets.get(name, number)) for name, number in found.items()}
    return _json(about), offsets


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _lag(offsets: dict[str, int], ends: dict[str, int]) -> int:
    return sum(max(0, end - offsets.get(queue, 0)) for queue, end in ends.items())


def _asking(file: PipelineFile, access: Access) -> Ends:
    """Asks the brokers of the file's name server."""

    def ends(queues: Iterable[str]) -> dict[str, int]:
        from penstock.client.admin import Admin
        from penstock.client.routes import MessageQueue

        if not file.nameserver:
            raise OptionError("no name server is known", "give one with --nameserver")
        found = {}
        settings = access.settings()
        with explaining(), Admin(file.nameserver, call_timeout_ms=3_000, **settings) as admin:
            for name in queues:
                topic, broker, number = name.split("/")
                if broker:  # a store directory has none, and no end that moves
                    found[name] = admin.max_offset(MessageQueue(topic, broker, int(number)))
        return found

    return ends
