"""The session that everything runs in: its settings reach Spark, workers start quickly and find the package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock.spark
from penstock.errors import PenstockError
from penstock.spark.progress import Batch
from tests.spark.processes import QUICK_SETTINGS

ROOT = Path(__file__).resolve().parents[2]


def test_settings_reach_spark(spark) -> None:
    conf = spark.conf
    assert spark.sparkContext.master == "local[2,2]"
    assert conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert conf.get("spark.sql.session.timeZone") == "UTC"
    assert conf.get("spark.driver.host") == "127.0.0.1"
    # What the caller gave wins.
    assert conf.get("spark.sql.shuffle.partitions") == "1"


def test_a_running_session_is_used(spark) -> None:
    key = "spark.sql.streaming.numRecentProgressUpdates"
    again = penstock.spark.session(**{key: "50"})
    try:
        assert again.sparkContext is spark.sparkContext
        assert again.conf.get(key) == "50"
    finally:
        spark.conf.unset(key)
    assert penstock.spark.session(master="local[2,2]").sparkContext is spark.sparkContext
    with pytest.raises(
        PenstockError, match=r"with master local\[2,2\] is running in this process, not local\[7\]"
    ):
        penstock.spark.session(master="local[7]")


def test_the_environment_of_the_process_is_left_alone(spark) -> None:
    assert "SPARK_LOCAL_IP" not in os.environ
    assert "worker_site" not in os.environ.get("PYTHONPATH", "")


def test_processes_that_plan_and_read_know_that_they_are_sparks(spark) -> None:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Reader(DataSourceReader):
        def __init__(self, made: bool) -> None:
            self.made = made

        def partitions(self):
            from penstock.spark.settling import _is_sparks

            return [InputPartition([self.made, _is_sparks()])]

        def read(self, partition):
            from penstock.spark.settling import _is_sparks

            yield (*partition.value, _is_sparks())

    class Settled(DataSource):
        def __init__(self, options) -> None:
            from penstock.spark.settling import _is_sparks

            super().__init__(options)
            self.made = _is_sparks()

        @classmethod
        def name(cls) -> str:
            return "settled"

        def schema(self) -> str:
            return "made boolean, planned boolean, read boolean"

        def reader(self, schema):
            return Reader(self.made)

    spark.dataSource.register(Settled)
    assert [tuple(row) for row in spark.read.format("settled").load().collect()] == [(True, True, True)]


def test_workers_take_pyspark_from_its_directory_and_find_the_package(spark) -> None:
    from pyspark.sql import functions as fn
    from pyspark.sql.types import StringType

    @fn.udf(StringType())
    def where(_):
        import pyspark

        import penstock

        zips = [path for path in sys.path if path.endswith(".zip") and "pyspark" in path]
        return f"{pyspark.__file__}|{penstock.__file__}|{zips}|{sys.executable}"

    module, package, zips, python = spark.range(1).select(where("id")).first()[0].split("|")
    assert "pyspark.zip" not in module
    assert package.startswith(str(ROOT))
    assert zips == "[]"
    assert python == sys.executable


def test_the_format_needs_no_registration(spark) -> None:
    """Spark finds it; what is wrong with the options is told by the source itself."""
    with pytest.raises(Exception, match="no nameserver is given"):
        spark.read.format("penstock").option("topic", "t").load()


def test_a_listener_reports_batches(spark, tmp_path: Path) -> None:
    seen: list[Batch] = []
    made = penstock.spark.listener(seen.append)
    spark.range(5).write.parquet(str(tmp_path / "rows"))
    spark.streams.addListener(made)
    try:
        frame = spark.readStream.schema("id bigint").parquet(str(tmp_path / "rows"))
        query = frame.writeStream.format("noop").queryName("listened").trigger(availableNow=True)
        query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
        # Events come some time after the batch, in Spark's own thread: this waits for the bus to be empty.
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        spark.streams.removeListener(made)
    assert [(batch.query, batch.rows) for batch in seen] == [("listened", 5)]


@pytest.mark.spark
def test_a_session_of_its_own_from_the_first_line_to_the_last(tmp_path: Path) -> None:
    """In a fresh process: started, used, stopped; what the JVM says goes to the log and not to the terminal."""
    log = str(tmp_path / "spark.log")
    code = (
        "import penstock.spark\n"
        f"spark = penstock.spark.session('one', 'local[1]', log={log!r}, **{QUICK_SETTINGS!r})\n"
        "print(spark.sparkContext.master, spark.range(7).count())\n"
        "spark.stop()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "local[1,4] 7\n"
    assert done.stderr == ""
    assert "WARN" in (tmp_path / "spark.log").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spark.log"]
