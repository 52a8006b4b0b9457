"""Counts the messages of a topic by tag, as a stream: each message once, also over restarts.

Run `penstock up`, send some (`seq 9 | penstock produce orders --tag new`), then `python examples/spark_counts.py`.
It ends when it has read what is there; the next run with the same directory counts on from there.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import penstock.spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMESERVER = os.environ.get("PENSTOCK_NAMESERVER", "127.0.0.1:9876")


def show(counts: DataFrame, batch: int) -> None:
    for row in counts.orderBy("tags").collect():
        print(f"batch {batch}: {row.tags or 'no tag'}: {row['count']}")


def count(spark: SparkSession, nameserver: str, topic: str, checkpoint: str) -> None:
    messages = (
        spark.readStream.format("penstock").option("nameserver", nameserver).option("topic", topic).load()
    )
    counting = (
        messages.groupBy("tags")
        .count()
        .writeStream.outputMode("update")
        .foreachBatch(show)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    counting.awaitTermination()


if __name__ == "__main__":
    count(penstock.spark.session("counts", log="spark.log"), NAMESERVER, "orders", "counts-checkpoint")
