"""How far a pipeline is, without Spark: out of its checkpoint, and of what the brokers say.

Spark keeps for each query `offsets/<batch>` (written before a batch: where it ends) and `commits/<batch>` (after it).
The last batch with both is done; one with offsets only is under way, or was cut off and will be run again.

    v1
    {"batchWatermarkMs": 0, "batchTimestampMs": 1738335600000, ...}
    {"orders/broker-a/0": 120, "orders/broker-a/1": 118}          one line per source, `-` for none

Rules: read only, and only files that Spark has finished (it renames them into place). Sources that are not ours
have offsets of another form; they are counted, not judged. A cluster that does not answer leaves the lag unknown.
A queue is asked for where the source of its topic reads it: a checkpoint has no names of sources, only of queues.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.client.access import FROM_ENVIRONMENT, Access, explaining
from penstock.client.options import DEFAULT_NAME_SERVER
from penstock.errors import OptionError, PenstockError, RouteNotFoundError
from penstock.spark.options import ReadOptions
from penstock.spark.pipelines.stream_file import PipelineFile, Source, read_pipeline, sink_checkpoint
from penstock.spark.pipelines.stream_run import running_pid
from penstock.spark.positions import split_beginning

if TYPE_CHECKING:
    from penstock.client.admin import Admin
    from penstock.client.routes import MessageQueue

# A queue's name to its end at the broker.
Ends = Callable[[Iterable[str]], dict[str, int]]
# Where a source reads: its name server, and who asks there.
Cluster = tuple[str, Access]


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
    file = read_pipeline(path, nameserver=nameserver, checkpoint=checkpoint, access=access)
    if not file.nameserver:
        file = read_pipeline(path, nameserver=DEFAULT_NAME_SERVER, checkpoint=checkpoint, access=access)
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
        found, _ = split_beginning(_json(line))
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
    """Asks the brokers of the clusters that the file's sources read."""

    def ends(queues: Iterable[str]) -> dict[str, int]:
        from penstock.client.admin import Admin
        from penstock.client.routes import MessageQueue

        found = {}
        admins: dict[Cluster, Admin] = {}
        with explaining(), ExitStack() as opened:
            for name in queues:
                topic, broker, number = name.split("/")
                if not broker:  # a store directory has none, and no end that moves
                    continue
                # Of a source that the file no longer has, the file's own.
                clusters = _clusters(file, topic) or [(file.nameserver, access)]
                for cluster in clusters:
                    if cluster not in admins:
                        address, who = cluster
                        admin = Admin(address, call_timeout_ms=3_000, **who.settings())
                        admins[cluster] = opened.enter_context(admin)
                queue = MessageQueue(topic, broker, int(number))
                found[name] = _end(queue, [admins[cluster] for cluster in clusters])
        return found

    return ends


def _clusters(file: PipelineFile, topic: str) -> list[Cluster]:
    """Where the file's sources read this topic; several if clusters have topics of the same name."""
    found: list[Cluster] = []
    for source in file.sources:
        if source.is_static or not source.is_ours or source.path:
            continue
        cluster = _cluster(source, topic)
        if cluster is not None and cluster not in found:
            found.append(cluster)
    return found


def _cluster(source: Source, topic: str) -> Cluster | None:
    try:
        options = ReadOptions.parse(source.options)
    except OptionError:
        return None  # `validate` tells what is wrong with it
    reads = topic in options.topic or (options.topic_pattern and re.fullmatch(options.topic_pattern, topic))
    return (source.options["nameserver"], options.access) if reads else None


def _end(queue: MessageQueue, admins: list[Admin]) -> int:
    """The end of a queue in the one cluster that has it."""
    found: list[int] = []
    missing: RouteNotFoundError | None = None
    for admin in admins:
        try:
            found.append(admin.max_offset(queue))
        except RouteNotFoundError as error:
            missing = error
    if len(found) > 1:
        raise OptionError(
            f"several clusters have a topic {queue.topic} at a broker {queue.broker_name}",
            "which of them a checkpoint means cannot be told; `penstock group describe` shows the lag of each",
        )
    if missing is not None and not found:
        raise missing
    return found[0]
