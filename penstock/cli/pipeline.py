"""`penstock pipeline …`: the jobs that run on Spark, each in a module of its own, imported when it is called."""

from __future__ import annotations

import click

from penstock.cli.lazy_group import LazyGroup

# Name: module, attribute, what `penstock pipeline --help` says.
PIPELINES = {
    "archive": (
        "penstock.cli.pipeline_archive",
        "archive",
        "Copy topics to Parquet files, each message exactly once.",
    ),
    "audit": (
        "penstock.cli.pipeline_audit",
        "audit",
        "Count, compare and time what is in SOURCE, and write a report.",
    ),
    "compact": (
        "penstock.cli.pipeline_compact",
        "compact",
        "Keep the latest message of each key of a topic as a table.",
    ),
    "prepare": (
        "penstock.cli.pipeline_prepare",
        "prepare",
        "See whether Spark runs here, and make its start quicker.",
    ),
    "replay": ("penstock.cli.pipeline_replay", "replay", "Send messages of SOURCE to a topic once more."),
    "stream": (
        "penstock.cli.pipeline_stream",
        "stream",
        "Run a pipeline that a file describes: sources, SQL, sinks.",
    ),
}


class PipelineGroup(LazyGroup):
    lazy = PIPELINES


@click.group("pipeline", cls=PipelineGroup)
def pipeline() -> None:
    """Run jobs on Spark: archive, audit, replay, compact, streaming SQL."""
