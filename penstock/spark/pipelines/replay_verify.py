"""Is what a replay added exactly what it should have: counted in the target, by the replay's id.

    rows           messages in the target with this id
    origins        different places they came from; fewer than rows: some were added twice
    content        sum of the hashes of their bodies, against the sum of what was sent
    disorder       messages that stand behind one with a higher offset of the same source queue, in the same target
                   queue

Rule: only the part of the target that came after the replay was planned is read. Computed by Spark; one row comes
back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as fn

from penstock.spark.pipelines.replay_rows import REPLAY_ID

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

COLUMNS = ("broker", "queue_id", "queue_offset", "body", "properties")


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found in the target."""

    rows: int
    origins: int
    content: int
    disorder: int

    def problems(self, rows: int, content: int, *, ordered: bool) -> list[str]:
        """What is wrong, in words; nothing if all of `rows` are there once, unchanged and in order."""
        found = []
        if self.rows != rows:
            off = f"{abs(rows - self.rows):,}"
            less, more = f"{off} of {rows:,} rows are not", f"{off} rows more than the {rows:,} sent are"
            found.append(f"{less if self.rows < rows else more} in the target")
        if self.rows > self.origins:
            found.append(f"{self.rows - self.origins:,} rows are there twice")
        if self.rows == rows and self.content != content:
            found.append("the bodies are not those that were sent")
        if ordered and self.disorder:
            found.append(f"{self.disorder:,} rows are out of order")
        return found


def content_sum() -> Column:
    """Sum of the hashes of all bodies: the same for the same rows in any order."""
    return fn.coalesce(fn.sum(fn.xxhash64("body").cast("decimal(38,0)")), fn.lit(0).cast("decimal(38,0)"))


def verify(target: DataFrame, replay_id: str) -> Verified:
    """Count what a replay added. `target` has COLUMNS."""
    origin = [
        fn.col("properties").getItem(f"REPLAY_{name}").alias(name.lower())
        for name in ("TOPIC", "BROKER", "QUEUE")
    ]
    rows = target.where(fn.col("properties").getItem(REPLAY_ID) == replay_id).select(
        fn.col("broker").alias("target_broker"),
        "queue_id",
        "queue_offset",
        "body",
        *origin,
        fn.col("properties").getItem("REPLAY_OFFSET").try_cast("bigint").alias("offset"),
    )
    # A store directory has no broker, and a null in the window's key would be a group of its own all the same.
    line = Window.partitionBy("target_broker", "queue_id", "topic", "broker", "queue").orderBy("queue_offset")
    lined = rows.withColumn("before", fn.lag("offset").over(line))
    place = fn.concat_ws("/", "topic", fn.coalesce("broker", fn.lit("")), "queue", "offset")
    row = lined.agg(
        fn.count("*"),
        fn.count_distinct(place),
        content_sum(),
        fn.count_if(fn.col("before") > fn.col("offset")),
    ).first()
    assert row is not None
    return Verified(int(row[0]), int(row[1]), int(row[2]), int(row[3]))
