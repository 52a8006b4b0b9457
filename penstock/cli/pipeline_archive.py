"""`penstock pipeline archive`: topics to Parquet, exactly once for whoever reads the files.

Options become a job of `penstock.spark.archive`, its batches lines, its result one more. With --once or --store an
interrupted run ends with 130; without an end the job is stopped by a signal, and ends with 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.clients import echo_json
from penstock.cli.escaping import one_line
from penstock.cli.option_types import NumberType, SizeType
from penstock.cli.pipeline_options import Job, pipeline_options, refuse_both
from penstock.cli.pipeline_running import AFTER_THE_BATCH, BATCH_WAIT_S
from penstock.cli.pipeline_steps import DurationType

if TYPE_CHECKING:
    from penstock.cli.pipeline_running import Running
    from penstock.spark.pipelines.archive import Archived
    from penstock.spark.pipelines.compaction import Merged

COMPRESSIONS = ("zstd", "snappy", "lz4", "gzip", "none")


@click.command()
@click.option("--topic", "topics", metavar="T[,U]", default="", help="Topics, with commas between them.")
@click.option(
    "--topic-pattern", "pattern", metavar="REGEX", default="", help="All topics of such a name instead."
)
@click.option(
    "--to", metavar="DIR", required=True, help="The archive; every executor sees it under this path."
)
@click.option(
    "--store", metavar="DIR", default="", help="Archive a store directory; no topic means all of them."
)
@click.option("--once", is_flag=True, help="Archive what is there now, then end.")
@click.option(
    "--every",
    "every_s",
    type=DurationType(),
    default=30,
    help="Run until stopped, with a batch so often (30s).",
)
@click.option(
    "--start", metavar="POSITION", default="earliest", help="Where a queue begins that is new here."
)
@click.option(
    "--group", default="penstock-archive", help="Group that shows the lag; retention can wait for it."
)
@click.option("--max-rows", type=NumberType(1, 1 << 40), help="Messages in one batch.")
@click.option(
    "--max-bytes", type=SizeType(), default="512M", help="Bytes of messages in one batch, about (512M)."
)
@click.option("--file-size", type=SizeType(), default="128M", help="Size at which a file is full (128M).")
@click.option("--compression", type=click.Choice(COMPRESSIONS), default="zstd", help="Of the files (zstd).")
@click.option(
    "--on-gap",
    type=click.Choice(("report", "skip", "fail")),
    default="report",
    help="Messages that the log should have and has not: a row in DIR/_gaps, nothing, or an error (report).",
)
@click.option(
    "--merge/--no-merge", default=True, help="Merge small files every ten minutes and at the end (on)."
)
@click.option("--merge-only", is_flag=True, help="Merge all small files of DIR, and nothing else.")
@pipeline_options()
def archive(
    job: Job,
    topics: str,
    pattern: str,
    to: str,
    store: str,
    once: bool,
    every_s: int,
    start: str,
    group: str,
    max_rows: int | None,
    max_bytes: int,
    file_size: int,
    compression: str,
    on_gap: str,
    merge: bool,
    merge_only: bool,
) -> int:
    """Copy topics to Parquet files, each message exactly once.

    DIR gets a folder for each topic and day. Run the same command again to resume; a lost checkpoint is no loss. Any
    reader of Parquet may read the files while they are written. Interrupted with --once or --store, it exits 130.
    """
    _refuse_contradictions()
    is_bounded = once or bool(store) or merge_only
    with job.running("archive", resume="run the same command to resume", is_bounded=is_bounded) as running:
        from penstock.spark.pipelines.archive import ArchiveJob, run_archive, topic_names
        from penstock.spark.pipelines.archive_files import FileSettings

        files = FileSettings(target_bytes=file_size, compression=compression)
        if merge_only:
            return _merge(running, job.as_json, to, files)
        wanted = ArchiveJob(
            to,
            topic_names(topics),
            pattern,
            nameserver=job.nameserver,
            access=job.access,
            store=store,
            checkpoint=job.checkpoint or "",
            group=group,
            start=start,
            once=once,
            every_s=every_s,
            max_rows=max_rows or 0,
            max_bytes=max_bytes,
            on_gap=on_gap,
            files=files,
            merge=merge,
        )
        running.check(wanted.check, store or job.nameserver, resumes=wanted.has_begun)
        with running.spark(BATCH_WAIT_S, AFTER_THE_BATCH) as spark:
            done = run_archive(wanted, spark, running.stop, running.progress.batch, running.failed)
    _show(done, to, job.as_json)
    return running.exit_code


def _refuse_contradictions() -> None:
    refuse_both("once", "every_s")
    refuse_both("topics", "pattern")
    refuse_both("store", "pattern", "every_s", "group", "nameserver", "checkpoint")
    others = ("once", "every_s", "topics", "pattern", "store", "start", "group", "max_rows", "max_bytes")
    refuse_both("merge_only", *others, "on_gap", "merge", "nameserver", "checkpoint")


def _show(done: Archived, to: str, as_json: bool) -> None:
    if as_json:
        echo_json(done.to_json(), lines=True)
        return
    rate = f", {done.rows / done.seconds:,.0f} rows/s" if done.rows and done.seconds else ""
    batches = f"{done.batches:,} batch{'es' if done.batches != 1 else ''}"
    click.echo(one_line(f"{done.rows:,} messages in {batches}{rate}; {done.files:,} files in {to}"))
    if done.merged.files_before:
        click.echo(f"{done.merged.files_before:,} small files became {done.merged.files_after:,}")
    if done.gaps:
        click.echo(one_line(f"{done.gaps:,} gaps are in {to}/_gaps: messages that the log no longer had"))
    if done.stopped:
        click.echo("stopped; run the same command to resume")


def _merge(running: Running, as_json: bool, to: str, files: Any) -> int:
    from penstock.spark.pipelines.archive_reading import ArchiveSnapshot
    from penstock.spark.pipelines.compaction import merge_files

    ArchiveSnapshot.open(to)
    with running.spark() as spark:
        running.say(f"merging small files of {to}")
        done: Merged = merge_files(spark, to, files)
    running.progress.close()
    facts = {
        "event": "merged",
        "files_before": done.files_before,
        "files_after": done.files_after,
        "rows": done.rows,
        "bytes_before": done.bytes_before,
        "bytes_after": done.bytes_after,
    }
    if as_json:
        echo_json(facts, lines=True)
    elif done.files_before:
        click.echo(f"{done.files_before:,} files with {done.rows:,} messages became {done.files_after:,}")
    else:
        click.echo("there is nothing to merge")
    return running.exit_code
