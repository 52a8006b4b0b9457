"""Chapters of the demonstration: a shop's orders through Spark, and whether everything adds up in the end.

One node, four producers, two consumers, a streaming pipeline from topic to topic, an archive made while orders come
in, an audit with its report, SQL over archive and log together. What was planned is known (`demo_orders`), so every
number that comes out is compared with it, and one that differs is told and fails the demonstration.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.demo_files import node_text, pipeline_text
from penstock.cli.demo_node import running_node
from penstock.cli.demo_orders import CLOSING, LATE_MINUTES, SHOP_SECONDS, WATERMARK_MINUTES, Plan, make_plan
from penstock.cli.demo_shop import GROUP, ORDERS, POISON, SETTLE_LIMIT_S, TOTALS, Shop
from penstock.cli.demo_telling import Telling
from penstock.client.admin import Admin
from penstock.spark.pipelines.stream_run import PipelineRun, run_pipeline
from penstock.spark.progress import Batch
from penstock.spark.running import Stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.pipelines.audit_result import Finding

QUERIES_SETTLE_S = 60.0
LOOK_S = 0.25
# A short life: the quick compiler, the plain collector, few partitions.
SETTINGS = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.log.level": "WARN",
}


@dataclass(slots=True)
class Books:
    """What was planned against what came out."""

    rows: list[tuple[str, int, int]] = field(default_factory=list)

    def compare(self, what: str, planned: int, found: int) -> None:
        self.rows.append((what, planned, found))

    @property
    def is_balanced(self) -> bool:
        return all(planned == found for _, planned, found in self.rows)


class PipelineThread:
    """The pipeline, running beside everything else until it is stopped."""

    def __init__(self, path: Path, spark: SparkSession) -> None:
        self.last: dict[str, Batch] = {}
        self.rows = self.batches = 0
        self.done: PipelineRun | None = None
        self.error: BaseException | None = None
        self._stop = Stop()
        self._thread = threading.Thread(target=self._run, args=(path, spark), name="penstock-demo-pipeline")

    def start(self) -> None:
        self._thread.start()

    def _run(self, path: Path, spark: SparkSession) -> None:
        try:
            self.done = run_pipeline(path, spark=spark, report=self._report, stop=self._stop)
        except BaseException as error:  # told by the demonstration's own thread
            self.error = error

    def _report(self, batch: Batch) -> None:
        self.last[batch.query] = batch
        self.rows += batch.rows
        self.batches += 1

    def batch_of(self, sink: str) -> int:
        """The last one that is done, -1 before the first."""
        return self.last[sink].batch if sink in self.last else -1

    def finish(self) -> PipelineRun:
        """Stop after the batches at hand."""
        self._stop.ask()
        self._thread.join()
        if self.error is not None:
            raise self.error
        if self.done is None:
            raise RuntimeError("the pipeline ended without a result")
        return self.done

    def check(self) -> None:
        if self.error is not None:
            raise self.error


class SparkChapters:
    """The steps, in order."""

    def __init__(self, directory: Path, seconds: float, telling: Telling) -> None:
        self._directory, self._seconds, self._telling = directory, seconds, telling
        self._say = telling.say
        self._plan: Plan = make_plan(seconds)
        self.books = Books()
        self._nameserver = ""

    def run(self) -> Books:
        from penstock.cli.pipeline_session import spark_session

        self._telling.title("Start a node for a shop, and Spark beside it")
        data = self._directory / "node"
        self._write("node.toml", node_text(str(data)))
        with running_node(data) as node:
            self._nameserver = node.facts()["nameserver"]
            self._say(f"name server {self._nameserver}, data in {data}")
            started = time.perf_counter()
            log = self._directory / "logs" / "spark.log"
            with spark_session("demo", None, SETTINGS, log=log) as spark:
                took = time.perf_counter() - started
                self._say(
                    f"Spark {spark.version} on {spark.sparkContext.master} in {took:.1f} s, its log in {log}"
                )
                self._shop(spark)
                self._audit(spark)
                self._sql(spark)
        return self.books

    def _write(self, name: str, text: str) -> Path:
        path = self._directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    # -- orders ----------------------------------------------------------------------------------------------

    def _shop(self, spark: SparkSession) -> None:
        plan, telling = self._plan, self._telling
        file = self._write("orders.toml", pipeline_text(self._nameserver))
        telling.title(
            "Open the shop: four producers, two consumers, and a pipeline in SQL from topic to topic"
        )
        self._say(
            f"a second here is {SHOP_SECONDS // 60} minutes at the shop: {plan.sent:,} messages in "
            f"{self._seconds:.0f} s, of {plan.orders:,} orders; {plan.twice} sent twice, {plan.late} up to "
            f"{LATE_MINUTES[1]} minutes late, {plan.poisoned} that nobody can read; and after hours "
            f"{len(plan.after_hours)} of the day before"
        )
        telling.command(f"penstock pipeline stream run {file}")
        with Shop(self._nameserver, plan) as shop:
            pipeline = PipelineThread(file, spark)
            pipeline.start()
            shop.open()
            try:
                self._watch(shop, pipeline, lambda: shop.sent >= plan.sent // 2)
                self._archive(spark)
                telling.title("Meanwhile: orders go on, and the pipeline with them")
                self._watch(shop, pipeline, lambda: not shop.is_selling)
                self._status(file)
                # What is late is measured against the batch before the last: two must be done to know.
                self._watch(shop, pipeline, lambda: pipeline.batch_of("totals") >= 1)
                shop.send_after_hours()
                self._settle(shop, pipeline)
            finally:
                done = pipeline.finish()
        for name, run in done.sinks.items():
            self._say(f"{name}: {run.rows:,} rows in {run.batches} batches, stopped after the batch at hand")
        self._consumers(shop)
        self._totals()

    def _watch(self, shop: Shop, pipeline: PipelineThread, is_enough: Any) -> None:
        """The live line, until it is enough."""
        limit = time.monotonic() + self._seconds * 4 + SETTLE_LIMIT_S
        with self._telling.live() as show:
            while not is_enough() and time.monotonic() < limit:
                pipeline.check()
                show(self._line(shop, pipeline))
                time.sleep(LOOK_S)
            show(self._line(shop, pipeline))

    def _status(self, file: Path) -> None:
        """What anybody on this machine can see of the pipeline, without Spark."""
        from penstock.cli.console import time_text
        from penstock.spark.pipelines.stream_status import pipeline_status

        self._telling.command(f"penstock pipeline stream status {file}")
        for sink in pipeline_status(file).sinks:
            lag = f"{sink.lag:,} messages wait" if sink.lag is not None else "nothing done yet"
            mark = f", watermark {time_text(sink.watermark_ms)}" if sink.watermark_ms > 0 else ""
            self._say(f"{sink.name}: batch {max(sink.batch, 0)}, {lag}{mark}")

    @staticmethod
    def _line(shop: Shop, pipeline: PipelineThread) -> str:
        totals = pipeline.last.get("totals")
        running = f"pipeline {totals.line()}" if totals is not None else "pipeline starting"
        return f"sent {shop.sent:,}  billed {shop.billed:,}  tried again {shop.retried:,}  {running}"

    def _settle(self, shop: Shop, pipeline: PipelineThread) -> None:
        """Wait for the retries to end and for the windows to come out."""
        plan = self._plan
        wanted = sum(orders for orders, _ in plan.totals.values())
        with Admin(self._nameserver) as admin:

            def is_settled() -> bool:
                return (
                    shop.billed >= plan.readable
                    and shop.dead_letters(admin) >= plan.poisoned
                    and sum(orders for orders, _ in read_totals(admin).values()) >= wanted
                    and messages_of(admin, POISON) >= plan.poisoned
                )

            self._watch(shop, pipeline, is_settled)

    # -- what came of them -----------------------------------------------------------------------------------

    def _archive(self, spark: SparkSession) -> None:
        from penstock.spark.pipelines.archive import archive

        self._telling.title("Archive what is there so far, while orders come in")
        target = self._directory / "archive"
        self._telling.command(f"penstock pipeline archive --topic {ORDERS} --to {target} --once")
        done = archive(ORDERS, str(target), spark=spark, nameserver=self._nameserver, once=True)
        self._say(
            f"{done.rows:,} messages in {done.files} Parquet files, by topic and date, in {done.seconds:.1f} s; "
            "whoever reads them finds each message once"
        )
        self._archived = done.rows

    def _consumers(self, shop: Shop) -> None:
        self._telling.title(f"The consumers of {GROUP}: done, tried again, given up")
        self._telling.command(f"penstock group describe {GROUP}")
        with Admin(self._nameserver) as admin:
            dead, lag = shop.dead_letters(admin), admin.describe_group(GROUP).lag
        self._say(
            f"{shop.billed:,} orders billed, each once however often it came; {shop.retried} tries put off by a "
            f"second; {dead} dead letters in %DLQ%{GROUP}; lag {lag}"
        )
        self.books.compare("messages sent", self._plan.in_all, shop.sent)
        self.books.compare("orders billed", self._plan.readable, shop.billed)
        self.books.compare("dead letters", self._plan.poisoned, dead)

    def _totals(self) -> None:
        self._telling.title(f"What the pipeline wrote to the topic {TOTALS}")
        with Admin(self._nameserver) as admin:
            found = read_totals(admin)
            poison = messages_of(admin, POISON)
        rows = [
            (channel, orders, f"{cents / 100:,.2f}") for channel, (orders, cents) in sorted(found.items())
        ]
        self._telling.table(("Channel", "Orders", "Revenue"), rows, right=("Orders", "Revenue"))
        self._say(
            f"each order once, late ones within {WATERMARK_MINUTES} minutes included, those of the day before left "
            f"out; {poison} unreadable ones in {POISON}"
        )
        for channel, (orders, cents) in sorted(self._plan.totals.items()):
            self.books.compare(f"orders in windows, {channel}", orders, found.get(channel, (0, 0))[0])
            self.books.compare(f"cents in windows, {channel}", cents, found.get(channel, (0, 0))[1])
        self.books.compare("unreadable ones set aside", self._plan.poisoned, poison)

    # -- audit and SQL ---------------------------------------------------------------------------------------

    def _audit(self, spark: SparkSession) -> None:
        from penstock.spark.pipelines.audit import audit

        self._telling.title(
            "Audit the whole log: gaps, duplicates, latencies, groups, dead letters, hot keys"
        )
        out = self._directory / "audit"
        self._telling.command(f"penstock pipeline audit log --out {out}")
        with self._telling.live() as show:
            result = audit(
                "log", out, nameserver=self._nameserver, spark=spark, tell=lambda text: show(f"audit: {text}")
            )
        rows = [(item.kind, item.severity, item.count, item.text) for item in result.findings]
        self._telling.table(("Finding", "", "Count", "What"), rows, right=("Count",))
        self._say(f"{result.rows:,} messages looked at; the report: {result.files.get('report', out)}")
        compare_findings(self.books, self._plan, result.findings)

    def _sql(self, spark: SparkSession) -> None:
        from penstock.spark.pipelines.sql import sql

        archive = self._directory / "archive"
        self._telling.title(
            "SQL over archive and log together: what is archived from there, the rest from the brokers"
        )
        places = {"nameserver": self._nameserver, "archive": str(archive), "spark": spark}
        query = (
            "select tags as channel, count(*) as messages, "
            "count(distinct broker, queue_id, queue_offset) as places, count(distinct keys) as orders, "
            "min(store_time) as first, max(store_time) as last from orders group by tags order by tags"
        )
        self._telling.command(f'penstock sql --archive {archive} "{query}"')
        frame = sql(query, **places)
        found = frame.collect()
        rows = [[_cell(value) for value in row] for row in found]
        self._telling.table(frame.columns, rows, right=("messages", "places", "orders"))
        messages, places = (sum(row[name] for row in found) for name in ("messages", "places"))
        self._say(sql_text(messages, places, self._archived, self._plan.in_all))
        self.books.compare("messages by SQL", self._plan.in_all, messages)
        self.books.compare("places in queues by SQL", self._plan.in_all, places)


def compare_findings(books: Books, plan: Plan, findings: Iterable[Finding]) -> None:
    """What the audit must have found, and what it must not have. There may be several findings of a kind about one
    topic: dead letters are told by their reasons."""
    counts: Counter[tuple[str, str]] = Counter()
    for item in findings:
        counts[item.kind, item.topic] += item.count

    def of_kind(kind: str) -> int:
        return sum(count for (found, _), count in counts.items() if found == kind)

    twice = counts["duplicate-keys", ORDERS]
    books.compare("audit: offsets missing", 0, of_kind("gaps"))
    books.compare("audit: messages stored twice", 0, of_kind("duplicate-ids"))
    books.compare("audit: orders sent twice", plan.twice, twice)
    books.compare("audit: others sent twice", 0, of_kind("duplicate-keys") - twice)
    books.compare("audit: dead letters", plan.poisoned, of_kind("dead-letters"))


def sql_text(messages: int, places: int, archived: int, planned: int) -> str:
    """What SQL over archive and log found: rows, and the different places in queues that they are of."""
    twice, left_out = messages - places, planned - places
    return (
        f"{messages:,} messages, {archived:,} of them from the archive; {_number(twice)} twice, "
        f"{_number(max(left_out, 0))} left out"
    )


def _number(count: int) -> str:
    return f"{count:,}" if count else "none"


def messages_of(admin: Admin, topic: str) -> int:
    return admin.describe_topic(topic).messages


def read_totals(admin: Admin) -> dict[str, tuple[int, int]]:
    """Orders and cents by channel, summed over the windows in the topic."""
    found: dict[str, tuple[int, int]] = {}
    for status in admin.describe_topic(TOTALS).queues:
        offset = status.min_offset
        while offset < status.max_offset:
            messages = admin.read_messages(status.queue, offset, limit=32)
            if not messages:
                break
            for message in messages:
                window = json.loads(message.body)
                if window["channel"] != CLOSING:
                    orders, cents = found.get(window["channel"], (0, 0))
                    found[window["channel"]] = (orders + window["orders"], cents + window["cents"])
            offset = messages[-1].queue_offset + 1
    return found


def _cell(value: object) -> object:
    return value if isinstance(value, int) else str(value)[:19]
