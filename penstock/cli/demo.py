"""`penstock demo`: a broker used, a store killed and recovered, a shop's orders through Spark; with figures.

Everything is real: clients and broker talk over sockets, the writer is another process that dies by SIGKILL, the
files are files, Spark is Spark. What must come out is known beforehand, and a single message that is missing or
counted twice ends it with 1. All of it lies in one directory, which the next demonstration clears and uses again.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.option_types import NumberType

if TYPE_CHECKING:
    from penstock.cli.demo_node import Exchange
    from penstock.cli.demo_spark import Books
    from penstock.cli.demo_store import Survival
    from penstock.cli.demo_telling import Telling

MESSAGES_MAX = 1_000_000
EXCHANGED_MAX = 50_000
# In a directory that a demonstration made, and that the next one may therefore clear.
MARK = ".penstock-demo"


@click.command()
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=Path("penstock-demo"),
    help="Where everything goes: a new directory, or that of an earlier demonstration (penstock-demo).",
)
@click.option(
    "--messages",
    type=NumberType(1, MESSAGES_MAX),
    default=10_000,
    help="Send so many through the broker, and kill the writer once so many are acknowledged (10000).",
)
@click.option("--seconds", type=NumberType(4, 3_600), default=24, help="How long the shop sells (24).")
@click.option("--without-spark", is_flag=True, help="Leave out the shop: no Java, no PySpark, a few seconds.")
def demo(directory: Path, messages: int, seconds: int, without_spark: bool) -> int:
    """Send and receive, crash and recover, then a shop's orders through Spark, with figures."""
    from penstock.cli.demo_telling import Telling

    if not without_spark:
        _require_spark()
    _clear(directory)
    return _Demo(directory, messages, seconds, Telling()).run(with_spark=not without_spark)


def _require_spark() -> None:
    """Say at once what is missing, not after a minute."""
    from penstock.errors import PenstockError
    from penstock.spark import needs_extra
    from penstock.spark.java import find_java

    hint = "; `penstock demo --without-spark` shows the rest"
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401

        find_java()
    except ModuleNotFoundError as error:
        raise PenstockError(f"{needs_extra(error)}{hint}") from error
    except PenstockError as error:
        raise PenstockError(error.message, f"{error.hint}{hint}") from error


def _clear(directory: Path) -> None:
    """An empty directory; only a demonstration's own is emptied."""
    if directory.exists():
        if not directory.is_dir() or (any(directory.iterdir()) and not (directory / MARK).is_file()):
            raise click.UsageError(
                f"{directory} is not empty and not of a demonstration; name a new directory",
                click.get_current_context(),
            )
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    (directory / MARK).touch()


class _Demo:
    """The parts, in order, and what they come to."""

    def __init__(self, directory: Path, messages: int, seconds: int, telling: Telling) -> None:
        self._directory = directory.absolute()
        self._messages, self._seconds, self._telling = messages, seconds, telling

    def run(self, *, with_spark: bool) -> int:
        from penstock import __version__, _hot

        self._telling.console.print(f"Penstock {__version__}, hot modules {_hot.form()}", style="bold")
        self._telling.console.print(f"Everything is in {self._directory}")
        exchanged = self._exchange()
        survival = self._survive()
        books = self._sell() if with_spark else None
        whole = exchanged.is_whole and survival.is_whole and (books is None or books.is_balanced)
        self._conclude(exchanged, survival, books, whole)
        return 0 if whole else 1

    def _exchange(self) -> Exchange:
        from penstock.cli.demo_node import exchange

        self._telling.part("A broker, a producer, a consumer")
        count = min(self._messages, EXCHANGED_MAX)
        return exchange(self._directory / "first-node", count, self._telling.title, self._telling.say)

    def _survive(self) -> Survival:
        from penstock.cli.demo_store import StoreChapters

        self._telling.part("A store that is killed and torn")
        return StoreChapters(self._directory / "store", self._messages, self._telling).run()

    def _sell(self) -> Books:
        from penstock.cli.demo_spark import SparkChapters

        self._telling.part("A shop's orders, with Spark")
        return SparkChapters(self._directory, self._seconds, self._telling).run()

    # -- the end ---------------------------------------------------------------------------------------------

    def _conclude(self, exchanged: Exchange, survival: Survival, books: Books | None, whole: bool) -> None:
        console, style = self._telling.console, "bold green" if whole else "bold red"
        self._telling.part("What it comes to")
        console.print()
        if books is not None:
            rows = [
                (what, planned, found, "" if planned == found else "DIFFERS")
                for what, planned, found in books.rows
            ]
            self._telling.table(("", "Planned", "Found", " "), rows, right=("Planned", "Found"))
            console.print()
        console.print(
            f"through the broker {exchanged.sent:,} sent, {exchanged.received:,} received", style=style
        )
        console.print(survival.line(), style=style)
        if books is not None:
            same = sum(planned == found for _, planned, found in books.rows)
            console.print(f"the shop's books: {same} of {len(books.rows)} numbers as planned", style=style)
        console.print(f"{self._telling.seconds():.0f} s in all", style=style)
        console.print()
        self._telling.say(self._next(with_spark=books is not None))

    def _next(self, *, with_spark: bool) -> str:
        if not with_spark:
            return f"Try next: penstock store stats {self._directory / 'store'}; penstock up"
        return (
            f"Try next: open {self._directory / 'audit' / 'report.html'} in a browser; penstock up --config "
            f'{self._directory / "node.toml"}, and in another terminal penstock sql "select * from orders limit 5"'
        )
