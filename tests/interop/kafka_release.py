"""A Kafka server and Spark's Kafka source on this machine, resolved by Maven and cached as in `java_release.py`.

Rule: versions are pinned in the two POMs. The source is the newest of Spark's that Maven Central has, which may be
older than the PySpark that runs it: `SOURCE_VERSION` says which, and whoever prints figures prints it, too.
"""

from __future__ import annotations

from pathlib import Path

from tests.interop.java_release import JavaBuild, prepare_build

SERVER_VERSION = "4.3.1"
SOURCE_VERSION = "4.2.0"
SERVER_BUILD = JavaBuild(f"kafka-{SERVER_VERSION}", "kafka", ("kafka",))
SOURCE_BUILD = JavaBuild(f"kafka-spark-{SOURCE_VERSION}", "kafka-spark", ())
NODE_CLASS = "penstock.interop.kafka.KafkaNode"


def server_class_path() -> str:
    """For `java -cp`: the launcher and the server."""
    home = prepare_build(SERVER_BUILD)
    return f"{home / 'classes'}:{home / 'lib'}/*"


def source_jars() -> list[Path]:
    """For `spark.jars`."""
    return sorted((prepare_build(SOURCE_BUILD) / "lib").glob("*.jar"))
