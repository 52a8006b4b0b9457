"""The audit: what is in a log, an archive or a store directory, whether all of it is there, and how it flows.

    result = audit("log:orders", "report/", nameserver="127.0.0.1:9876")
    result.exit_code, result.findings, result.tables["gaps"]

Everything is computed by Spark over facts (`audit_facts`) that are read once. What is brought to the driver are
tables that people can read; tables of single faults are cut to `details` rows, their counts never are.

Rule: an audit changes nothing in what it looks at. The report is complete or not there: it is written at the end.
Runs on the driver. docs/spark/audit.md says what each table means.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from pyspark.sql import DataFrame, SparkSession

from penstock.client.access import FROM_ENVIRONMENT, Access
from penstock.runtime import Disk, Runtime
from penstock.spark.pipelines.audit_result import AuditResult, Limits, ResultFiles
from penstock.spark.pipelines.audit_run import AuditRun, AuditSettings, Tell
from penstock.spark.pipelines.audit_sources import Opened, Source, open_frame, open_source, parse_source
from penstock.spark.pipelines.report import render
from penstock.spark.running import Stop

__all__ = ["AuditResult", "AuditSettings", "Limits", "Opened", "Source", "audit"]

_SAMPLES_KEPT = 10_000
AnySource: TypeAlias = "str | Source | Opened | DataFrame"


def audit(
    source: AnySource,
    out: str | Path | None = None,
    *,
    against: AnySource | None = None,
    nameserver: str = "",
    access: Access = FROM_ENVIRONMENT,
    topics: Iterable[str] = (),
    settings: AuditSettings | None = None,
    spark: SparkSession | None = None,
    tell: Tell = lambda text: None,
    stop: Stop | None = None,
    runtime: Runtime | None = None,
) -> AuditResult:
    """Audit a source, and compare it with `against` if that is given. With `out` the report is written there.

    StoppedError once `stop` is asked: half an audit says nothing.
    """
    settings, runtime = settings or AuditSettings(), runtime or Runtime.system()
    files = ResultFiles(runtime.disk, Path(out)) if out is not None else None
    if files is not None:
        files.check()
    stop = stop or Stop()
    session = spark or _session()
    # Where a read notes why messages are missing must be one place for all of Spark: this machine, or nowhere.
    reasons = files.directory / ".reasons" if files is not None and is_local(session) else None
    with _prepared(files), _emptied(runtime.disk, reasons):
        tell("asking for ranges and groups")
        left = open_any(session, source, nameserver, topics, str(reasons or ""), access)
        right = open_any(session, against, nameserver, topics, access=access) if against is not None else None
        samples = files.samples() if files is not None else []
        run = AuditRun(session, left, right, settings, runtime, tell, samples, stop)
        result = run.result(str(reasons or ""))
        if files is not None:
            tell("writing the report")
            files.save(result, render(result), run.samples[-_SAMPLES_KEPT:])
    return result


def is_local(spark: SparkSession) -> bool:
    """Whether driver and executors share this machine's disk."""
    return str(spark.sparkContext.master).startswith("local")


@contextmanager
def _prepared(files: ResultFiles | None) -> Iterator[None]:
    """The directory of a report; one that gets none is not left behind."""
    if files is None:
        yield
        return
    files.prepare()
    try:
        yield
    except BaseException:
        files.abandon()
        raise


@contextmanager
def _emptied(disk: Disk, directory: Path | None) -> Iterator[None]:
    """A directory that is not there before and after the block."""
    try:
        if directory is not None and disk.exists(directory):
            disk.remove_tree(directory)
        yield
    finally:
        if directory is not None and disk.exists(directory):
            disk.remove_tree(directory)


def _session() -> SparkSession:
    from penstock.spark.session import session

    return session("penstock audit")


def open_any(
    spark: SparkSession,
    source: AnySource,
    nameserver: str,
    topics: Iterable[str],
    gap_table: str = "",
    access: Access = FROM_ENVIRONMENT,
) -> Opened:
    """A source in any of its forms, with its ranges fixed."""
    if isinstance(source, Opened):
        return source
    if isinstance(source, str):
        source = parse_source(source, nameserver, topics, access)
    if isinstance(source, Source):
        return open_source(spark, source, gap_table=gap_table)
    return open_frame(source)
