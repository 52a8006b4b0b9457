"""Checks and runs a streaming pipeline that a file describes.

    problems = check_pipeline("orders.toml")
    done = run_pipeline("orders.toml", once=True)

Rules: nothing is started while the file has a problem. Every sink is a query of its own with a checkpoint of its
own, `<checkpoint>/<sink>`, from which it goes on after a stop, a failure or a crash, exactly where it was. A
pipeline runs once at a time: its checkpoint directory is locked while it does, because two runs of one checkpoint
would each undo what the other promised. Runs on the driver; prints nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.client.access import FROM_ENVIRONMENT, Access
from penstock.errors import OptionError, PenstockError
from penstock.runtime import SystemDisk
from penstock.spark.options import ReadOptions
from penstock.spark.pipelines.file_sections import Problem
from penstock.spark.pipelines.stream_build import Built
from penstock.spark.pipelines.stream_file import (
    AVAILABLE_NOW,
    PipelineFile,
    Sink,
    read_pipeline,
    sink_checkpoint,
)
from penstock.spark.pipelines.stream_written import Written
from penstock.spark.preflight import check_directory, check_source, check_target
from penstock.spark.progress import WRITTEN, Batch, Report, ignore
from penstock.spark.running import FAILURES_MAX, OnFailure, Run, Stop, run
from penstock.spark.session import active
from penstock.spark.sink_options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOCK_NAME = "running"


class PipelineFileError(OptionError):
    """A file that cannot be run; `problems` has each with its line."""

    def __init__(self, path: Path, problems: list[Problem]) -> None:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        super().__init__(
            f"{path}: {problems[0]}{more}", f"`penstock pipeline stream validate {path}` lists everything"
        )
        self.path, self.problems = path, problems


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """What was done until the pipeline ended, by sink."""

    name: str
    checkpoint: str
    sinks: Mapping[str, Run]

    @property
    def rows(self) -> int:
        return sum(item.rows for item in self.sinks.values())


def check_pipeline(
    path: str | Path,
    *,
    spark: SparkSession | None = None,
    nameserver: str | None = None,
    access: Access = FROM_ENVIRONMENT,
    with_spark: bool = True,
) -> list[Problem]:
    """Everything that is wrong with a file. Nothing is connected to and no data is read.

    Without Spark only the file itself is judged: keys, values, names; not SQL and columns.
    """
    file = read_pipeline(path, nameserver=nameserver, access=access)
    if with_spark and file.document.content:
        Built(file, spark or _session(file), stand_ins=True).build()
    return file.problems


def run_pipeline(
    path: str | Path,
    *,
    spark: SparkSession | None = None,
    nameserver: str | None = None,
    access: Access = FROM_ENVIRONMENT,
    checkpoint: str | None = None,
    once: bool = False,
    report: Report = ignore,
    stop: Stop | None = None,
    on_failure: OnFailure | None = None,
    failures_max: int = FAILURES_MAX,
) -> PipelineRun:
    """Run a pipeline until it is asked to stop, or with `once` until it has done what there is to do now."""
    file = read_runnable(path, nameserver=nameserver, checkpoint=checkpoint, access=access)
    return run_file(
        file, spark, once=once, report=report, stop=stop, on_failure=on_failure, failures_max=failures_max
    )


def read_runnable(
    path: str | Path,
    *,
    nameserver: str | None = None,
    access: Access = FROM_ENVIRONMENT,
    checkpoint: str | None = None,
) -> PipelineFile:
    """A file in which nothing is wrong, as far as can be judged without Spark."""
    file = read_pipeline(path, nameserver=nameserver, checkpoint=checkpoint, access=access)
    if file.problems:
        raise PipelineFileError(file.path, file.problems)
    return file


def has_begun(file: PipelineFile, sink: str) -> bool:
    """Whether a sink has a checkpoint on this machine."""
    return Path(sink_checkpoint(file, sink), "offsets").is_dir()


def check_file(file: PipelineFile) -> None:
    """Raise for a source, sink or directory of the file that cannot be used; without Spark, within seconds."""
    check_directory("the checkpoint", file.checkpoint)
    if "://" not in file.checkpoint and (pid := running_pid(file.checkpoint)) is not None:
        raise _running_already(file.checkpoint, pid)
    begins = not any(has_begun(file, sink.name) for sink in file.sinks)
    for source in file.sources:
        if source.is_ours and not source.path:
            with _naming("tables" if source.is_static else "sources", source.name):
                check_source(ReadOptions.parse(source.options), begins=begins and not source.is_static)
    for sink in file.sinks:
        with _naming("sinks", sink.name):
            if sink.is_ours:
                check_target(WriteOptions.parse(sink.options))
            elif sink.path:
                check_directory("path", sink.path)


@contextmanager
def _naming(*place: str) -> Iterator[None]:
    """Errors say which part of the file they are about."""
    try:
        yield
    except PenstockError as error:
        error.message = f"{'.'.join(place)}: {error.message}"
        error.args = (f"{error.message}; {error.hint}" if error.hint else error.message,)
        raise


def run_file(
    file: PipelineFile,
    spark: SparkSession | None = None,
    *,
    once: bool = False,
    report: Report = ignore,
    stop: Stop | None = None,
    on_failure: OnFailure | None = None,
    failures_max: int = FAILURES_MAX,
) -> PipelineRun:
    """The same as `run_pipeline`, of a file that may have been checked before Spark started."""
    with only_run(file.checkpoint):
        built = Built(file, spark or _session(file))
        with active(built.session):
            built.build()
        if file.problems:
            raise PipelineFileError(file.path, file.problems)
        starts = {sink.name: _starter(built.sinks[sink.name], sink, file, once=once) for sink in file.sinks}
        written = Written(file)

        def count(batch: Batch) -> None:
            written.count(batch)
            report(batch)

        done = run(starts, stop=stop, report=count, on_failure=on_failure, failures_max=failures_max)
    return PipelineRun(file.name, file.checkpoint, written.runs(done))


def _session(file: PipelineFile) -> SparkSession:
    from penstock.spark.session import session

    return session(f"penstock {file.name}", **file.settings)


def _starter(frame: DataFrame, sink: Sink, file: PipelineFile, *, once: bool) -> Any:
    """What starts the query of a sink, as often as it is called, from whichever thread."""

    def start() -> Any:
        with active(frame.sparkSession):
            return begin()

    def begin() -> Any:
        from pyspark.sql import functions as fn

        # What leaves the query: of an aggregation that is less than what it reads.
        written = frame.observe(WRITTEN, fn.count(fn.lit(1)).alias("rows"))
        writer = (
            written.writeStream.queryName(sink.name)
            .format(sink.format)
            .outputMode(sink.mode)
            .options(**sink.options)
            .option("checkpointLocation", sink_checkpoint(file, sink.name))
        )
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        if once or sink.trigger == AVAILABLE_NOW:
            writer = writer.trigger(availableNow=True)
        elif sink.trigger:
            writer = writer.trigger(processingTime=sink.trigger)
        return writer.start(sink.path) if sink.path else writer.start()

    return start


# -- one run at a time ---------------------------------------------------------------------------------------------


@contextmanager
def only_run(checkpoint: str) -> Iterator[None]:
    """Refuse a second run on the same checkpoint; one on another file system cannot be locked and is not."""
    if "://" in checkpoint:
        yield
        return
    folder = Path(checkpoint)
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_NAME
    try:
        lock = SystemDisk().lock(path, f"{os.getpid():<10d}\n".encode())
    except (BlockingIOError, PermissionError) as error:
        raise _running_already(checkpoint, running_pid(checkpoint)) from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()
        if is_new and not any(folder.iterdir()):
            folder.rmdir()  # nothing was started


def _running_already(checkpoint: str, pid: int | None) -> PenstockError:
    return PenstockError(
        f"the pipeline is running already{f', as process {pid}' if pid else ''}",
        f"stop it first, or give this run another --checkpoint than {checkpoint}",
    )


def running_pid(checkpoint: str) -> int | None:
    """The process that runs on a checkpoint, None if none does; 0 if it is not known which."""
    path = Path(checkpoint, LOCK_NAME)
    if not path.is_file():
        return None
    try:
        SystemDisk().lock(path, b"").release()
    except (BlockingIOError, PermissionError):
        words = path.read_text(encoding="ascii", errors="replace").split()
        return int(words[0]) if words and words[0].isdigit() else 0
    return None
