"""Asks a cluster, before Spark starts, what a job will need of it: name server, topics, brokers, permissions.

    check_source(ReadOptions.parse(...))      every topic exists, its brokers answer, and we may read it
    check_target(WriteOptions.parse(...))     the topic can be written to, and a broker takes what the sink sends
    check_directory("--to", "archive")        it can be made and written to

Spark takes seconds to start, and its tasks wait for brokers that are away. A typing mistake must not cost that: these
checks use the calls that the job itself makes, try each once, and end within seconds.

Rules: plain Python on the driver; imports no PySpark. Reads only: nothing is created, committed or sent. A failure to
connect names the address, and says so where only one side speaks TLS.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.client.access import Access, explaining
from penstock.client.addresses import parse_name_servers
from penstock.client.admin import Admin
from penstock.client.probing import answers
from penstock.client.scan import Scan
from penstock.client.scan_results import QueueId
from penstock.client.staging import TEMPLATE_TOPIC, Staging
from penstock.errors import ConnectError, OptionError, PenstockError, RemotingError, RouteNotFoundError
from penstock.runtime import Runtime
from penstock.spark.live import find_queues
from penstock.spark.options import ReadOptions, near_names
from penstock.spark.positions import resolve
from penstock.spark.sink_options import AT_LEAST_ONCE, WriteOptions

CALL_TIMEOUT_MS = 2_000
# The id of a query that writes nothing.
PROBE_QUERY = "penstock-preflight"


@contextmanager
def reaching(nameserver: str | Sequence[str], access: Access) -> Iterator[dict[str, Any]]:
    """The settings of a client that gives up soon; its errors say what to do."""
    try:
        with explaining():
            yield {**access.settings(), "call_timeout_ms": CALL_TIMEOUT_MS}
    except RemotingError as error:
        servers = parse_name_servers(nameserver) if isinstance(nameserver, str) else nameserver
        other = next((name for name in servers if answers(name, with_tls=not access.with_tls)), "")
        if other and access.with_tls:
            hint = "leave out --tls and its files (tls, tlsTrusted and tlsCertificate in a pipeline file)"
            raise ConnectError(f"{other} speaks no TLS", hint) from error
        if other:
            hint = "add --tls, or --tls-trusted FILE for a certificate that this machine does not know"
            raise ConnectError(f"{other} speaks TLS only", hint) from error
        raise


def check_source(options: ReadOptions, *, begins: bool = False) -> None:
    """Raise for a source of a cluster that cannot be read. `begins`: it has no checkpoint, so its first position
    counts. A store directory is opened when it is read."""
    if options.is_offline:
        return
    with (
        reaching(options.nameserver, options.access) as settings,
        Scan(options.nameserver, retry_ms=0, **settings) as scan,
    ):
        ranges = scan.ranges(find_queues(scan, options))
        if begins:
            resolve(options.starting_position, "startingPosition", ranges, scan.offsets_by_time)
        # Who may ask for offsets may still not read.
        first: dict[tuple[str, str], QueueId] = {}
        for queue in ranges:
            first.setdefault((queue.topic, queue.broker), queue)
        for queue in first.values():
            scan.pull(queue, ranges[queue].min, rows=1, size=1)


def check_target(options: WriteOptions, *, must_exist: bool = False) -> None:
    """Raise for a topic that cannot be written to; one that brokers make on demand can, unless it must exist. Rows
    that name their topics themselves are judged as they come."""
    with reaching(options.nameserver, options.access) as settings:
        try:
            with Admin(options.nameserver, **settings) as admin:
                _check_queues(admin, options.topic, must_exist)
            if options.delivery != AT_LEAST_ONCE:
                with Staging(options.nameserver, retry_ms=0, **settings) as staging:
                    staging.home(PROBE_QUERY, options.topic, options.broker)
        except RouteNotFoundError as error:
            near = _near_topic(options, settings)
            message = f"there is no topic {options.topic!r} to write to{near}"
            raise RouteNotFoundError(message, error.hint) from error


def _check_queues(admin: Admin, topic: str, must_exist: bool) -> None:
    if not topic:
        admin.list_topics()
        return
    try:
        admin.write_queues(topic)
    except RouteNotFoundError as error:
        if must_exist:
            raise
        try:
            admin.write_queues(TEMPLATE_TOPIC)  # where brokers make topics for sends
        except RouteNotFoundError:
            raise error from None


def _near_topic(options: WriteOptions, settings: dict[str, Any]) -> str:
    try:
        with Admin(options.nameserver, **settings) as admin:
            near = near_names(options.topic, admin.list_topics())
    except PenstockError:
        return ""  # a writer of some topics may not list the others
    return f", did you mean {near.rstrip('?')}" if near else ""


def check_directory(name: str, place: str | Path) -> None:
    """Raise for a directory that cannot be made or written to. What is not of this machine is not judged."""
    if "://" in str(place):
        return
    disk, path = Runtime.system().disk, Path(place).absolute()
    while not disk.exists(path) and path != path.parent:
        path = path.parent
    if not disk.is_dir(path):
        raise OptionError(f"{name}: {path} is a file", "name a directory, or one that can be made")
    if not os.access(path, os.W_OK | os.X_OK):
        raise OptionError(f"{name}: {path} cannot be written to", "name another directory")
