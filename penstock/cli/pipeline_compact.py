"""`penstock pipeline compact`: the latest message of each key of a topic, kept as a Parquet table."""

from __future__ import annotations

import click

from penstock.cli.clients import echo_json
from penstock.cli.escaping import one_line
from penstock.cli.option_types import NumberType, SizeType
from penstock.cli.pipeline_options import Job, pipeline_options, refuse_both
from penstock.cli.pipeline_running import AFTER_THE_BATCH, BATCH_WAIT_S
from penstock.cli.pipeline_steps import DurationType


@click.command()
@click.option("--topic", metavar="T", required=True, help="The topic.")
@click.option("--to", metavar="DIR", required=True, help="The table; every executor sees it under this path.")
@click.option("--key", metavar="SQL", default="keys", help="The key, as in \"properties['id']\" (keys).")
@click.option("--once", is_flag=True, help="Bring the table up to date, then end.")
@click.option(
    "--every",
    "every_s",
    type=DurationType(),
    default=30,
    help="Run until stopped, with a batch so often (30s).",
)
@click.option("--start", metavar="POSITION", default="earliest", help="Where a new table begins (earliest).")
@click.option("--group", default="penstock-compact", help="Group that shows the lag (penstock-compact).")
@click.option("--buckets", type=NumberType(1, 4096), help="Parts of a new table (16).")
@click.option(
    "--max-bytes", type=SizeType(), default="256M", help="Bytes of messages in one batch, about (256M)."
)
@click.option(
    "--on-gap",
    type=click.Choice(("report", "skip", "fail")),
    default="report",
    help="Messages that the log should have and has not: a row in DIR/_gaps, nothing, or an error (report).",
)
@pipeline_options()
def compact(
    job: Job,
    topic: str,
    to: str,
    key: str,
    once: bool,
    every_s: int,
    start: str,
    group: str,
    buckets: int | None,
    max_bytes: int,
    on_gap: str,
) -> int:
    """Keep the latest message of each key of a topic as a table.

    A message with an empty body drops its key. Run the same command again to resume. Exits 130 if it is interrupted
    with --once.
    """
    refuse_both("once", "every_s")
    with job.running("compact", resume="run the same command to resume", is_bounded=once) as running:
        from penstock.spark.pipelines.latest_by_key import CompactJob, run_compact

        wanted = CompactJob(
            topic,
            to,
            key,
            nameserver=job.nameserver,
            access=job.access,
            checkpoint=job.checkpoint or "",
            group=group,
            start=start,
            once=once,
            every_s=every_s,
            buckets=buckets or 0,
            max_bytes=max_bytes,
            on_gap=on_gap,
        )
        running.check(wanted.check, job.nameserver, resumes=wanted.has_begun)
        with running.spark(BATCH_WAIT_S, AFTER_THE_BATCH) as spark:
            done = run_compact(wanted, spark, running.stop, running.progress.batch, running.failed)
    if job.as_json:
        echo_json(done.to_json(), lines=True)
        return running.exit_code
    batches = f"{done.batches:,} batch{'es' if done.batches != 1 else ''}"
    click.echo(one_line(f"{done.rows:,} messages in {batches}; {done.keys:,} keys in {to}"))
    if done.stopped:
        click.echo("stopped; run the same command to resume")
    return running.exit_code
