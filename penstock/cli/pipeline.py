"""`penstock pipeline …`: the jobs that run on Spark, each in a module of its own, imported when it is called."""

from __future__ import annotations

import importlib

import click

# Name: module, what `penstock pipeline --help` says. The command in the module has the name, or is `command`.
PIPELINES = {
    "archive": ("penstock.cli.pipeline_archive", "Copy topics to Parquet files, each message exactly once."),
    "audit": (
        "penstock.cli.pipeline_audit",
        "Count, compare and time what is in SOURCE, and write a report.",
    ),
    "compact": (
        "penstock.cli.pipeline_compact",
        "Keep the latest message of each key of a topic as a table.",
    ),
    "prepare": ("penstock.cli.pipeline_prepare", "See whether Spark runs here, and make its start quicker."),
    "replay": ("penstock.cli.pipeline_replay", "Send messages of SOURCE to a topic once more."),
    "stream": ("penstock.cli.pipeline_stream", "Run a pipeline that a file describes: sources, SQL, sinks."),
}


class PipelineGroup(click.Group):
    """Lists the pipelines without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(PIPELINES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in PIPELINES:
            return None
        module = importlib.import_module(PIPELINES[cmd_name][0])
        command = getattr(module, cmd_name, None) or getattr(module, "command", None)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, PIPELINES[name][1]) for name in self.list_commands(ctx)])


@click.group("pipeline", cls=PipelineGroup)
def pipeline() -> None:
    """Run jobs on Spark: archive, audit, replay, compact, streaming SQL."""
