"""`penstock pipeline replay`: messages of an archive, a topic or a store directory are sent to a topic once more.

Options become arguments of `penstock.spark.replay`, its slices lines, its result a few lines or a JSON object. Exits
1 if the target does not hold what was sent, 130 if it was interrupted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from penstock.cli.clients import echo_json
from penstock.cli.option_types import NumberType, SizeType
from penstock.cli.pipeline_options import Job, pipeline_options
from penstock.cli.pipeline_running import BATCH_WAIT_S
from penstock.cli.pipeline_steps import ShareType, TimeType

if TYPE_CHECKING:
    from penstock.cli.pipeline_progress import Progress
    from penstock.spark.pipelines.replay import ReplayResult, Step


def _timed(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, int | None]:
    """A time as it was written, and what it means now."""
    return ("", None) if value is None else (value.strip(), TimeType().convert(value, param, ctx))


@click.command()
@click.argument("source", metavar="SOURCE")
@click.option("--to", "target", metavar="TOPIC", required=True, help="Topic to send to; it must exist.")
@click.option(
    "--topic", "topics", metavar="T", multiple=True, help="Of this topic, or of those that match * and ?."
)
@click.option(
    "--from", "start", metavar="TIME", callback=_timed, help="Messages stored at this time or later."
)
@click.option("--until", "end", metavar="TIME", callback=_timed, help="Messages stored before this time.")
@click.option("--key", "keys", metavar="K", multiple=True, help="Messages with this key; may be repeated.")
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="Messages with this tag; may be repeated.")
@click.option(
    "--where", metavar="SQL", default="", help='Messages for which this is true, as "queue_id = 3".'
)
@click.option("--rate", metavar="N", type=ShareType(0.001, 1e9), help="Messages per second, at most.")
@click.option("--by-key", is_flag=True, help="Queue by key, instead of one for each queue of the source.")
@click.option(
    "--slice-rows", type=NumberType(1, 10_000_000), help="Messages that are published at once (50000)."
)
@click.option("--slice-bytes", type=SizeType(), help="Bytes that are published at once (32M).")
@click.option("--skip-gaps", is_flag=True, help="Leave out messages that the source should have and has not.")
@click.option("--dry-run", is_flag=True, help="Count and show some; send nothing.")
@click.option("--verify/--no-verify", "verifying", default=True, help="Count the target at the end (on).")
@pipeline_options()
def replay(
    job: Job,
    source: str,
    target: str,
    topics: tuple[str, ...],
    start: tuple[str, int | None],
    end: tuple[str, int | None],
    keys: tuple[str, ...],
    tags: tuple[str, ...],
    where: str,
    rate: float | None,
    by_key: bool,
    slice_rows: int | None,
    slice_bytes: int | None,
    skip_gaps: bool,
    dry_run: bool,
    verifying: bool,
) -> int:
    """Send messages of SOURCE to a topic once more.

    SOURCE is archive:DIR, store:DIR, a directory, or log:TOPIC,... of the running cluster. With --checkpoint the same
    command resumes a replay that was interrupted, and adds nothing to a finished one. Exits 1 if the target does not
    hold what was sent, 130 if it is interrupted.
    """
    from dataclasses import replace

    kept = f"run the same command with --checkpoint {job.checkpoint} to resume"
    with job.running("replay", resume=kept if job.checkpoint else "nothing was sent") as running:
        from penstock.spark.pipelines.audit_sources import parse_source
        from penstock.spark.pipelines.replay import ReplaySettings, check_replay, run_replay
        from penstock.spark.pipelines.replay_plan import SLICE_BYTES, SLICE_ROWS, Wanted

        settings = ReplaySettings(
            rate=rate,
            slice_rows=slice_rows or SLICE_ROWS,
            slice_bytes=slice_bytes or SLICE_BYTES,
            verify=verifying,
            on_gap="skip" if skip_gaps else "fail",
        )
        opened = replace(
            parse_source(source, job.nameserver, topics, job.access),
            start=start[1],
            end=end[1],
            start_text=start[0],
            end_text=end[0],
        )
        wanted = Wanted(opened, target, job.nameserver, where, keys, tags, by_key, job.access)
        running.check(
            lambda: check_replay(wanted, job.checkpoint, dry_run=dry_run), f"{opened.label} and {target}"
        )

        def report(step: Step) -> None:
            if not job.checkpoint:
                running.resume = (
                    f"{step.rows_done:,} of {step.rows_total:,} messages were sent, and without --checkpoint "
                    "this cannot resume: run again, it sends all of them"
                )
            _report(step, running.progress)

        with running.spark(BATCH_WAIT_S, "stopping after this slice; Ctrl-C again stops at once") as spark:
            result = run_replay(
                wanted,
                settings,
                spark,
                job.checkpoint,
                dry_run=dry_run,
                tell=running.progress.step,
                report=report,
                stop=lambda: running.stop.is_asked,
            )
    if job.as_json:
        echo_json({"event": "result", **result.to_json()}, lines=True)
    else:
        _show(result, running.resume)
    return running.exit_code or result.exit_code


def _report(step: Step, progress: Progress) -> None:
    from penstock.spark.progress import duration, short

    rate = step.rows / step.seconds if step.seconds > 0 else 0.0
    left = step.rows_total - step.rows_done
    eta = f"  ETA {duration(left / rate)}" if left and rate else ""
    progress.done(
        {
            "event": "slice",
            "slice": step.slice + 1,
            "slices": step.slices,
            "rows": step.rows,
            "rows_done": step.rows_done,
            "rows_total": step.rows_total,
            "seconds": round(step.seconds, 3),
        },
        f"slice {step.slice + 1} of {step.slices}  {step.rows_done:,} of {step.rows_total:,}  "
        f"{short(rate)} rows/s{eta}",
    )


def _show(result: ReplayResult, resume: str) -> None:
    from rich.text import Text

    from penstock.cli.console import count_text, output, size_text
    from penstock.cli.escaping import printable

    console = output()
    what = f"{count_text(result.rows, 'message')}, {size_text(result.bytes)}, in {count_text(result.slices, 'slice')}"
    if result.dry_run:
        console.print(Text(f"would send {what} to {printable(result.target)}"))
        _show_dry_run(result)
        return
    if result.finished_before:
        console.print(Text(f"{result.id} was finished before: {what}; nothing was added"))
    else:
        console.print(Text(f"{result.id}: sent {result.added:,} of {what} to {printable(result.target)}"))
    if result.stopped:
        console.print(Text(f"stopped; {printable(resume)}"))
    for problem in result.problems:
        console.print(Text(printable(problem), style="bold red"))
    if result.verified is not None and not result.problems:
        console.print(Text(f"verified: {result.verified.rows:,} are there, each once", style="green"))


def _show_dry_run(result: ReplayResult) -> None:
    from rich.text import Text

    from penstock.cli.console import name_text, output, plain_table, size_text
    from penstock.cli.escaping import printable

    console = output()
    numbers = ("Queue", "Messages", "Size")
    queues = plain_table("Topic", "Broker", *numbers, right=numbers)
    for row in result.queues:
        place = (name_text(row["topic"]), name_text(row["broker"] or "-"), str(row["queue_id"]))
        queues.add_row(*place, f"{row['rows']:,}", size_text(row["bytes"]))
    console.print()
    console.print(queues)
    if not result.samples:
        return
    samples = plain_table("Queue", "Offset", "Stored", "Keys", "Tags", "Body", right=("Offset",))
    for row in result.samples:
        body = row["body"] if row["body"] is not None else f"({row['body_bytes']} bytes)"
        texts = [Text(printable(str(row[name] or "-"), 60)) for name in ("keys", "tags")]
        queue = Text(printable(f"{row['topic']}/{row['queue_id']}"))
        samples.add_row(
            queue, f"{row['queue_offset']:,}", str(row["store_time"]), *texts, Text(printable(body, 80))
        )
    console.print()
    console.print(samples)
