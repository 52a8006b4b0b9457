"""`penstock pipeline compact`: the latest message of each key of a topic, kept as a Parquet table."""

from __future__ import annotations

import click

from penstock.cli.clients import echo_json
from penstock.cli.escaping import one_line
from penstock.cli.option_types import NumberType, SizeType
from penstock.cli.pipeline_options import Job, pipeline_options
from penstock.cli.pipeline_steps import DurationType


@click.command()
@click.option("--topic", metavar="T", required=True, help="The topic.")
@click.option("--to", metavar="DIR", required=True, help="The table; every executor sees it under this path.")
@click.option("--key", metavar="SQL", default="keys", help="The key, as in \"properties['id']\" (keys).")
@click.option("--once", is_flag=True, help="Bring the table up to date, then end.")
@click.option(
    "--every", "every_s", type=DurationType(), default=30, help="Or go on, with a batch so often (30s)."
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
) -> None:
    """Keep the latest message of each key of a topic as a table.

    A message with an empty body drops its key. The same command goes on where it was.
    """
    from penstock.spark import needs_extra

    try:
        from penstock.spark.pipelines.latest_by_key import compact as run
    except ModuleNotFoundError as error:
        raise needs_extra(error) from error
    from penstock.spark.running import stopping_on_signals

    with job.spark("compact") as spark, job.progress() as report, stopping_on_signals() as stop:
        done = run(
            topic,
            to,
            key=key,
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
            spark=spark,
            stop=stop,
            report=report,
            on_failure=lambda name, reason, wait_s: click.echo(
                one_line(f"{name} failed, starts again in {wait_s:g} s: {reason}"), err=True
            ),
        )
    if job.as_json:
        echo_json(done.to_json(), lines=True)
        return
    batches = f"{done.batches:,} batch{'es' if done.batches != 1 else ''}"
    click.echo(one_line(f"{done.rows:,} messages in {batches}; {done.keys:,} keys in {to}"))
    if done.stopped:
        click.echo("stopped; the same command goes on from here")
