"""`penstock pipeline audit`: what is in a log, an archive or a store, whether all of it is there, and how it flows.

Options become arguments of `penstock.spark.audit`, its steps lines, its findings a table. Ends with 1 if there are
problems, so that a script can act on it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.clients import echo_json
from penstock.cli.option_types import NumberType
from penstock.cli.pipeline_options import Job, pipeline_options
from penstock.cli.pipeline_steps import DurationType, ShareType, TimeType

if TYPE_CHECKING:
    from penstock.cli.pipeline_running import Running
    from penstock.spark.pipelines.audit import AuditSettings
    from penstock.spark.pipelines.audit_result import AuditResult

FINDINGS_SHOWN = 40


@click.command()
@click.argument("source", metavar="SOURCE", default="log")
@click.option(
    "--topic", "topics", metavar="T", multiple=True, help="This topic, or those that match * and ?."
)
@click.option(
    "--out", metavar="DIR", default="penstock-audit", help="Directory of the report (penstock-audit)."
)
@click.option("--compare", metavar="SOURCE", help="Compare message by message with this source.")
@click.option("--from", "start", type=TimeType(), help="Only messages stored at this time or later.")
@click.option("--until", "end", type=TimeType(), help="Only messages stored before this time.")
@click.option("--window", type=DurationType(), help="Width of the time windows, as 30s, 5m or 1h.")
@click.option(
    "--sequence", metavar="NAME", default="", help="Property with a number that grows within a key."
)
@click.option(
    "--reason",
    metavar="NAME",
    default="PENSTOCK_REASON",
    help="Property in which consumers say why they give up (PENSTOCK_REASON, as Penstock's do).",
)
@click.option("--bodies/--no-bodies", default=True, help="Read bodies, for duplicates by key (on).")
@click.option(
    "--details", type=NumberType(1, 10_000_000), default=10_000, help="Single faults per table (10000)."
)
@click.option(
    "--observe", type=DurationType(), default=0, help="Watch the groups at least so long, for rates."
)
@click.option("--allow", metavar="KIND", multiple=True, help="This kind of finding is no problem.")
@click.option("--max-lag", type=NumberType(0, 1 << 62), help="More waiting messages are a problem.")
@click.option(
    "--max-latency", metavar="MS", type=NumberType(0, 1 << 40), help="A longer 99 % until stored is."
)
@click.option("--max-skew", type=ShareType(1, 1e6), help="A queue with more times the mean of its topic is.")
@click.option("--max-hot-key", type=ShareType(0, 1), help="A key with a larger part of its topic is, as 0.1.")
@pipeline_options(checkpoint=False)
def audit(
    job: Job,
    source: str,
    topics: tuple[str, ...],
    out: str,
    compare: str | None,
    start: int | None,
    end: int | None,
    window: int | None,
    sequence: str,
    reason: str,
    bodies: bool,
    details: int,
    observe: int,
    allow: tuple[str, ...],
    max_lag: int | None,
    max_latency: int | None,
    max_skew: float | None,
    max_hot_key: float | None,
) -> int:
    """Count, compare and time what is in SOURCE, and write a report.

    SOURCE is log (the running cluster, which is the default), log:TOPIC,..., archive:DIR, store:DIR, or a directory.
    The report is a page, JSON, and a Parquet file per table. Exits 1 if problems were found, 130 if it is
    interrupted.
    """

    def settings_of() -> AuditSettings:
        from penstock.spark.pipelines.audit import AuditSettings, Limits

        limits = Limits(frozenset(allow), max_lag, max_latency, max_skew, max_hot_key)
        return AuditSettings(window or None, sequence, bodies, reason, details, float(observe), limits)

    resume = f"no report was written to {out}; run the same command again"
    with job.running("audit", resume=resume) as running:
        result = _run(running, job, source, compare, topics, out, (start, end), settings_of)
    if job.as_json:
        shown = result.to_json()
        del shown["tables"]
        echo_json({"event": "result", **shown}, lines=True)
    else:
        _show(result)
    return running.exit_code or result.exit_code


def _run(
    running: Running,
    job: Job,
    source: str,
    compare: str | None,
    topics: tuple[str, ...],
    out: str,
    times: tuple[int | None, int | None],
    make_settings: Callable[[], AuditSettings],
) -> AuditResult:
    from dataclasses import replace
    from functools import partial

    from penstock.runtime import SystemDisk
    from penstock.spark.pipelines.audit import audit as run_audit
    from penstock.spark.pipelines.audit_result import ResultFiles
    from penstock.spark.pipelines.audit_sources import Source, check_source, parse_source

    def named(text: str) -> Source:
        nameserver = job.nameserver if text.partition(":")[0] == "log" else job.nameserver_given or ""
        return replace(parse_source(text, nameserver, topics, job.access), start=times[0], end=times[1])

    settings = make_settings()
    left = named(source)
    right = named(compare) if compare else None
    ResultFiles(SystemDisk(), Path(out)).check()
    for item in (left, right):
        if item is not None:
            running.check(partial(check_source, item), item.label)
    with running.spark() as spark:
        return run_audit(
            left,
            out,
            against=right,
            settings=settings,
            spark=spark,
            tell=running.progress.step,
            stop=running.stop,
        )


def _show(result: AuditResult) -> None:
    from rich.text import Text

    from penstock.cli.console import count_text, output, plain_table
    from penstock.cli.escaping import printable

    console = output()
    problems = len(result.problems)
    console.print(Text(printable(result.source), style="bold"))
    console.print(
        Text(
            f"{count_text(result.rows, 'message')} in {(result.finished_ms - result.started_ms) / 1000:.1f} s"
        )
    )
    if result.findings:
        table = plain_table("", "Kind", "What", "Count", right=("Count",))
        for item in result.findings[:FINDINGS_SHOWN]:
            mark = Text("problem", style="red") if item.is_problem else Text("note", style="dim")
            table.add_row(mark, item.kind, Text(printable(item.text, 400)), f"{item.count:,}")
        console.print()
        console.print(table)
        if len(result.findings) > FINDINGS_SHOWN:
            console.print(
                Text(f"and {len(result.findings) - FINDINGS_SHOWN} more in the report", style="dim")
            )
    console.print()
    verdict = (
        Text(count_text(problems, "problem"), style="bold red")
        if problems
        else Text("no problems", style="green")
    )
    console.print(verdict)
    console.print(Text(f"report: {printable(result.files.get('report', ''))}"))
