"""`penstock group export-offsets | import-offsets`: offsets between a store's consumerOffset.json and ZooKeeper.

The broker does the same for itself while it runs (`broker.zookeeper_offsets`). These are for moving without it: from
one place to the other for good, from TubeMQ's entries, from a copy of a directory. What is copied and what stays is
`penstock.coordinator.offsets.migration`'s; here options become arguments and outcomes are shown.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli.option_types import NumberType

if TYPE_CHECKING:
    from penstock.coordinator.offsets import MigrationReport, OffsetStorage
    from penstock.metadata.config_files import ConfigFile
    from penstock.metadata.offset_table import ConsumerOffsetTable

T = TypeVar("T")
CONNECT_TIMEOUT_MS = 10_000
BROKER_ID_MAX = 2**32 - 1


def _migration(command: Callable[..., T]) -> Callable[..., T]:
    """The options that both directions share."""
    decorators = (
        click.argument(
            "directory", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False)
        ),
        click.option("--zookeeper", "hosts", metavar="HOST:PORT", required=True, help="Several with commas."),
        click.option("--root", metavar="PATH", default="/tubemq", help="The entry they are below (/tubemq)."),
        click.option("--cluster", metavar="C", default="DefaultCluster", help="The broker's cluster_name."),
        click.option("--name", metavar="B", default="broker-a", help="The broker's broker_name (broker-a)."),
        click.option(
            "--broker-id",
            type=NumberType(0, BROKER_ID_MAX),
            help="The broker's number in ZooKeeper, instead of the one that cluster and name give.",
        ),
        click.option("--overwrite", is_flag=True, help="Copy lower offsets too; else the higher one stays."),
        click.option("--dry-run", is_flag=True, help="Say what would be copied, and change nothing."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text."),
    )
    return functools.reduce(lambda made, decorator: decorator(made), reversed(decorators), command)


@click.command("export-offsets")
@_migration
def export_offsets(directory: Path, overwrite: bool, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Copy offsets of the store in DIR into ZooKeeper.

    DIR is the data directory of a broker of Penstock or RocketMQ. In ZooKeeper offsets are as TubeMQ
    keeps them. Works while the broker runs; its file is then some seconds old.
    """
    from penstock.coordinator.offsets import copy_to_storage
    from penstock.errors import PenstockError

    file, table = _read(directory)
    if table is None:
        raise PenstockError(f"there is no {file.path}", "name the data directory of a broker")
    found = table

    async def copy(storage: OffsetStorage) -> MigrationReport:
        if dry_run:
            storage.may_write = lambda: False
        return await copy_to_storage(found, storage, overwrite=overwrite)

    number, report = _with_storage(copy, **where)
    _show(report, number, "ZooKeeper", dry_run, as_json)


@click.command("import-offsets")
@_migration
def import_offsets(directory: Path, overwrite: bool, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Copy offsets from ZooKeeper into a store in DIR.

    Its broker must be stopped.
    """
    from penstock.coordinator.offsets import copy_from_storage
    from penstock.metadata.offset_table import ConsumerOffsetTable
    from penstock.runtime import SystemClock

    if not dry_run:
        _check_stopped(directory)
    file, found = _read(directory)
    table = ConsumerOffsetTable() if found is None else found

    async def copy(storage: OffsetStorage) -> MigrationReport:
        return await copy_from_storage(storage, table, overwrite=overwrite)

    number, report = _with_storage(copy, **where)
    if report.copied and not dry_run:
        _check_stopped(directory)
        table.data_version = table.data_version.next(SystemClock().now_ms())
        file.save(table.to_json())
    _show(report, number, "the directory", dry_run, as_json)


def _read(directory: Path) -> tuple[ConfigFile, ConsumerOffsetTable | None]:
    from penstock.metadata.config_files import ConfigFile
    from penstock.metadata.offset_table import ConsumerOffsetTable
    from penstock.metadata.table_log import load_table, read_log
    from penstock.runtime import SystemDisk
    from penstock.store.layout import StorePaths

    disk, config = SystemDisk(), StorePaths(directory).config
    file = ConfigFile(disk, config / ConsumerOffsetTable.FILE_NAME)
    return file, load_table(file, ConsumerOffsetTable, read_log(disk, config)).value


def _check_stopped(directory: Path) -> None:
    """A broker that runs would write its own offsets over ours, and so would the journal of one that was killed."""
    from penstock.broker.table_journal import OLD_FILE_NAME
    from penstock.cli.store import is_in_use
    from penstock.errors import PenstockError
    from penstock.metadata.table_log import log_numbers
    from penstock.runtime import SystemDisk
    from penstock.store.layout import StorePaths

    if is_in_use(directory):
        raise PenstockError(f"{directory} is in use", "stop its broker first")
    config = StorePaths(directory).config
    if (config / OLD_FILE_NAME).exists() or log_numbers(SystemDisk(), config):
        raise PenstockError(
            f"the broker of {directory} was not stopped cleanly, and would forget what is imported",
            "start it and stop it with SIGTERM first",
        )


def _with_storage(
    copy: Callable[[OffsetStorage], Awaitable[MigrationReport]],
    hosts: str,
    root: str,
    cluster: str,
    name: str,
    broker_id: int | None,
) -> tuple[int, MigrationReport]:
    """The number of the broker, and what was copied."""
    import asyncio
    import logging

    from penstock.coordinator.offsets import (
        OffsetStorageOptions,
        broker_id_of_set,
        zookeeper_offset_storage,
    )

    # What fails is told once, as the command's one line.
    logging.getLogger("penstock").addHandler(logging.NullHandler())
    number = broker_id_of_set(cluster, name) if broker_id is None else broker_id
    options = OffsetStorageOptions(hosts, root, connect_timeout_ms=CONNECT_TIMEOUT_MS, stop_tries=1)

    async def whole() -> MigrationReport:
        storage = zookeeper_offset_storage(options, number)
        try:
            await storage.start()
            return await copy(storage)
        finally:
            await storage.stop()

    return number, asyncio.run(whole())


def _show(report: MigrationReport, number: int, target: str, dry_run: bool, as_json: bool) -> None:
    from penstock.cli.clients import echo_json
    from penstock.cli.complaints import note
    from penstock.cli.escaping import printable

    if as_json:
        echo_json(
            {
                "broker_id": number,
                "copied": report.copied,
                "kept": report.kept,
                "skipped": list(report.skipped),
                "dry_run": dry_run,
            }
        )
        return
    done = "would be copied" if dry_run else "copied"
    click.echo(
        f"{report.copied:,} offsets {done} to {target} (broker {number}), {report.kept:,} are as far or further there"
    )
    for line in report.skipped:
        note(f"left out: {printable(line, 400)}")
