"""`penstock pipeline stream validate | run | status FILE`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from penstock.cli.clients import echo_json
from penstock.cli.escaping import one_line, printable
from penstock.cli.pipeline_options import Job, access_options, pipeline_options
from penstock.cli.pipeline_running import AFTER_THE_BATCH, BATCH_WAIT_S

if TYPE_CHECKING:
    from penstock.cli.pipeline_running import Running
    from penstock.client.access import Access
    from penstock.spark.pipelines.stream_status import PipelineStatus

EXIT_WRONG = 1
FILE = click.argument("file", type=click.Path(dir_okay=False))


@click.group()
def stream() -> None:
    """Run a pipeline that a file describes: sources, SQL, sinks.

    The file is TOML: docs/spark/stream.md shows one. Every command here takes --json.
    """


@stream.command()
@FILE
@click.option(
    "--no-spark", is_flag=True, help="Judge the file alone, not its SQL: at once, and without Java."
)
@pipeline_options(checkpoint=False)
def validate(file: str, no_spark: bool, job: Job) -> int:
    """Find everything that is wrong with FILE, without connecting to anything."""
    from penstock.spark.pipelines.stream_run import check_pipeline

    nameserver, settings = _told(file, job)
    if no_spark:
        problems = check_pipeline(file, nameserver=nameserver, access=job.access, with_spark=False)
    else:
        with replace(job, conf=settings).spark("validate") as spark:
            problems = check_pipeline(file, spark=spark, nameserver=nameserver, access=job.access)
    if job.as_json:
        echo_json(
            [{"line": item.line, "where": item.where, "message": item.message} for item in problems],
            lines=True,
        )
    for item in problems:
        if not job.as_json:
            click.echo(one_line(f"{file}: {item}"))
    if not problems and not job.as_json:
        click.echo(
            f"{printable(file)} is fine" + ("" if not no_spark else ", as far as can be told without Spark")
        )
    return EXIT_WRONG if problems else 0


@stream.command("run")
@FILE
@click.option("--once", is_flag=True, help="Do what there is to do now, then end.")
@pipeline_options()
def run_file(file: str, once: bool, job: Job) -> int:
    """Run FILE until SIGINT or SIGTERM; run the same command again to resume.

    Exits 1 if FILE is wrong, 130 if it is interrupted with --once.
    """
    from penstock.spark.pipelines import stream_run

    nameserver, settings = _told(file, job)
    job = replace(job, conf=settings)
    try:
        with job.running("stream", resume="run the same command to resume", is_bounded=once) as running:
            read = stream_run.read_runnable(
                file, nameserver=nameserver, access=job.access, checkpoint=job.checkpoint
            )
            resumes = any(stream_run.has_begun(read, sink.name) for sink in read.sinks)
            running.check(lambda: stream_run.check_file(read), f"{file} at {nameserver}", resumes=resumes)
            with running.spark(BATCH_WAIT_S, AFTER_THE_BATCH) as spark:
                done = stream_run.run_file(
                    read,
                    spark,
                    once=once,
                    report=running.progress.batch,
                    stop=running.stop,
                    on_failure=lambda *said: _say_failure(*said, running=running, as_json=job.as_json),
                )
    except stream_run.PipelineFileError as error:
        for problem in error.problems:
            click.echo(one_line(f"{file}: {problem}"), err=True)
        return EXIT_WRONG
    for name, item in done.sinks.items():
        ended = "stopped" if item.stopped else "done"
        facts = {
            "batches": item.batches,
            "rows": item.written,
            "rows_read": item.rows,
            "seconds": round(item.seconds, 1),
        }
        if job.as_json:
            echo_json({"event": ended, "query": name, **facts, "restarts": item.restarts}, lines=True)
        else:
            click.echo(
                f"{name}: {ended}, {item.written:,} rows in "
                f"{item.batches:,} batch{'es' if item.batches != 1 else ''}, {item.rows:,} read, {item.seconds:.1f} s"
                + (f", restarted {item.restarts} times" if item.restarts else "")
            )
    if not job.as_json and running.stop.is_asked:
        click.echo("run the same command to resume")
    return running.exit_code


def _told(file: str, job: Job) -> tuple[str, dict[str, str]]:
    """The name server and Spark's settings, which options and the file may both tell; options win."""
    from penstock.spark.pipelines.stream_file import read_pipeline

    read = read_pipeline(file)
    settings = {name: value for name, value in read.settings.items() if name.startswith("spark.")}
    return job.nameserver_given or read.nameserver or job.nameserver, {**settings, **job.conf}


def _say_failure(name: str, reason: str, wait_s: float, *, running: Running, as_json: bool) -> None:
    if as_json:
        echo_json(
            {"event": "failed", "query": name, "reason": reason, "again_in_seconds": wait_s}, lines=True
        )
    else:
        running.failed(name, reason, wait_s)


@stream.command()
@FILE
@click.option(
    "--nameserver", metavar="HOST:PORT", envvar="PENSTOCK_NAMESERVER", help="Name server to ask for the lag."
)
@access_options
@click.option("--checkpoint", metavar="DIR", help="Where the pipeline keeps how far it is.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def status(file: str, nameserver: str | None, access: Access, checkpoint: str | None, as_json: bool) -> None:
    """Show how far FILE is, from its checkpoint and the brokers; starts no Spark."""
    from penstock.spark.pipelines.stream_status import pipeline_status

    found = pipeline_status(file, nameserver=nameserver, checkpoint=checkpoint, access=access)
    if as_json:
        echo_json(
            {
                "name": found.name,
                "checkpoint": found.checkpoint,
                "pid": found.pid,
                "trouble": found.trouble,
                "sinks": [item.json() for item in found.sinks],
            }
        )
    else:
        _show(found)


def _show(found: PipelineStatus) -> None:
    from rich.text import Text

    from penstock.cli.console import name_text, output, plain_table, time_text

    console = output()
    state = (
        f"running as process {found.pid}"
        if found.pid
        else "running"
        if found.pid == 0
        else "not running here"
    )
    console.print(Text(printable(found.name), style="bold"))
    console.print(Text(printable(f"{state}, checkpoint {found.checkpoint}", 400)))
    numbers = ("Batch", "Lag")
    table = plain_table("Sink", "From", "Format", *numbers, "Last batch", "Watermark", right=numbers)
    for item in found.sinks:
        batch = f"{item.batch:,}{' +1' if item.is_batch_open else ''}" if item.batch >= 0 else "-"
        lag = f"{item.lag:,}" if item.lag is not None else "?"
        times = (time_text(item.batch_time_ms), time_text(item.watermark_ms))
        table.add_row(name_text(item.name), name_text(item.view), name_text(item.format), batch, lag, *times)
    console.print()
    console.print(table)
    if found.trouble:
        click.echo(one_line(f"the lag is not known: {found.trouble}"), err=True)
