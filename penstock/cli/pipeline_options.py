"""What the Spark commands share: their options, a session for as long as one runs, and errors in one line.

    @click.command()
    @pipeline_options()
    def archive(job: Job, ...) -> int:
        with job.running("archive", resume="run the same command to resume") as running:
            ...                                     arguments and the cluster are checked
            with running.spark() as spark:
                ...
        return running.exit_code

Rules: PySpark is imported when a session is needed, not before. What Spark and its workers say goes to a file,
which is deleted after a good end and named after a bad one. `penstock.spark` does the work; here it is only
asked for and shown.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli.clients import ACCESS_OPTIONS, DEFAULT_NAME_SERVER, secret_of, warn_of_secret
from penstock.cli.option_types import PairType
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.cli.pipeline_running import Running
    from penstock.client.access import Access

T = TypeVar("T")
# What Spark itself takes for a secret (spark.redaction.regex), less access keys.
_SECRET = re.compile("secret|password|token", re.IGNORECASE)
_COMMAND_LINE = click.core.ParameterSource.COMMANDLINE


def _settings(
    context: click.Context, parameter: click.Parameter, value: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    for name, _ in value:
        if _SECRET.search(name):
            warn_of_secret(f"--conf {name}", "a file that every executor has, or spark-defaults.conf")
    return value


NAMESERVER = click.option(
    "--nameserver",
    metavar="HOST:PORT",
    envvar="PENSTOCK_NAMESERVER",
    help=f"Name server; several are separated by ; (PENSTOCK_NAMESERVER, {DEFAULT_NAME_SERVER}).",
)
MASTER = click.option(
    "--master", metavar="URL", envvar="PENSTOCK_SPARK_MASTER", help="Spark's master, as local[4] (local[*])."
)
CHECKPOINT = click.option(
    "--checkpoint", metavar="DIR", help="Checkpoint directory. Run again with the same one to resume."
)
CONF = click.option(
    "--conf",
    "conf",
    type=PairType(),
    multiple=True,
    callback=_settings,
    help="A setting of Spark, as spark.executor.memory=4g; may be repeated.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object in a line for progress.")


def _from_environment() -> Access:
    """Imported when a command runs: help must not load the client."""
    from penstock.client.access import FROM_ENVIRONMENT

    return FROM_ENVIRONMENT


@dataclass(frozen=True, slots=True)
class Job:
    """How a pipeline is run. `nameserver_given` is None where the default was not overruled."""

    nameserver_given: str | None = None
    master: str | None = None
    checkpoint: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    as_json: bool = False
    access: Access = field(default_factory=_from_environment)

    @property
    def nameserver(self) -> str:
        return self.nameserver_given or DEFAULT_NAME_SERVER

    @contextmanager
    def spark(self, app: str) -> Iterator[SparkSession]:
        """A session until the block ends; an error of Spark's becomes one of ours, in a line. For commands that show
        nothing but their result; a terminal shows that Spark starts."""
        from penstock.cli.pipeline_progress import showing
        from penstock.cli.pipeline_session import spark_session

        with ExitStack() as starting:
            if sys.stderr.isatty():
                starting.enter_context(showing()).say("starting Spark")
            with spark_session(app, self.master, self.conf) as session:
                starting.close()
                yield session

    @contextmanager
    def running(self, app: str, *, resume: str, is_bounded: bool = True) -> Iterator[Running]:
        """What the job does is shown and signals end it well, from before Spark is imported until the block ends."""
        from penstock.cli.pipeline_running import running

        with running(self, app, resume=resume, is_bounded=is_bounded) as made:
            yield made


def refuse_both(first: str, *others: str) -> None:
    """A wrong call if the command line has this option and one of the others, by the names of their parameters."""
    context = click.get_current_context()
    flags = {item.name: item.opts[0] for item in context.command.params}
    given = [name for name in (first, *others) if context.get_parameter_source(name) is _COMMAND_LINE]
    if first in given and len(given) > 1:
        raise click.UsageError(f"{flags[first]} and {flags[given[1]]} cannot both be given", context)


def access_options(command: Callable[..., T]) -> Callable[..., T]:
    """The options about access, which become the command's `access`: a value that goes to Spark's executors. Paths
    are made absolute, because executors have other working directories. What the environment says stays there, for
    every process to read its own."""

    @functools.wraps(command)
    def with_access(
        *arguments: Any,
        tls: bool,
        tls_trusted: str | None,
        tls_certificate: str | None,
        access_key: str | None,
        secret_key: str | None,
        secret_file: str | None,
        credentials: str | None,
        **others: Any,
    ) -> T:
        from penstock.client.access import Access

        paths = [
            os.path.abspath(path) if path else "" for path in (credentials, tls_trusted, tls_certificate)
        ]
        access = Access(
            access_key or "",
            secret_of(secret_key, secret_file),
            credentials_file=paths[0],
            tls=tls,
            tls_trusted=paths[1],
            tls_certificate=paths[2],
        )
        return command(*arguments, access=access, **others)

    return functools.reduce(lambda made, option: option(made), reversed(ACCESS_OPTIONS), with_access)


def pipeline_options(
    *, nameserver: bool = True, checkpoint: bool = True
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """The options, which become the command's `job`; those that it has no use for can be left out."""

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(command)
        def with_job(
            *arguments: Any,
            master: str | None,
            conf: tuple[tuple[str, str], ...],
            as_json: bool,
            nameserver: str | None = None,
            checkpoint: str | None = None,
            access: Access | None = None,
            **others: Any,
        ) -> T:
            for name, _ in conf:
                if not name.startswith("spark."):
                    raise PenstockError(
                        f"--conf {name}: no setting of Spark",
                        "settings begin with spark., as in spark.executor.memory",
                    )
            job = Job(nameserver, master, checkpoint, dict(conf), as_json, access or _from_environment())
            return command(*arguments, job=job, **others)

        named: list[Callable[[Any], Any]] = [NAMESERVER, access_options] if nameserver else []
        chosen = [
            *named,
            MASTER,
            *([CHECKPOINT] if checkpoint else []),
            CONF,
            JSON,
        ]
        return functools.reduce(lambda made, option: option(made), reversed(chosen), with_job)

    return decorate
