"""The example of docs/spark/stream.md for Spark Declarative Pipelines, run with PySpark's own command, twice.

A topic becomes a streaming table, the table a materialized view and another topic. The files of the pipeline are
those of the page, with addresses and folders of the test; its catalog is the one that the page names for second runs.
"""

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyspark
import pytest

ROOT = Path(__file__).resolve().parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
RUN_S = 400.0
FIRST, MORE = 120, 60
# Of the extra pyspark[pipelines], which is part of ours.
MISSING = [
    name
    for name in ("pyspark.pipelines", "grpc", "grpc_status", "google.protobuf", "yaml", "pandas", "zstandard")
    if importlib.util.find_spec(name) is None
]
SETTINGS = {
    "spark.sql.catalogImplementation": "hive",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "768m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.java,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"DECLARATIVE PIPELINES WERE NOT TESTED: no {', '.join(MISSING)}; pip install 'pyspark[pipelines]'",
    ),
]


def example(language: str) -> str:
    """The one block of a language in the section of the page."""
    page = (ROOT / "docs" / "spark" / "stream.md").read_text()
    section = page.partition("\n## Spark Declarative Pipelines\n")[2].partition("\n## ")[0]
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    return block


def replaced(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert old in text, f"the page does not say {old} any more"
        text = text.replace(old, new)
    return text


class Pipeline:
    """The folder of a pipeline, with the page's files."""

    def __init__(self, folder: Path, changes: dict[str, str]) -> None:
        self.folder = folder
        (folder / "transformations").mkdir()
        (folder / "conf").mkdir()
        storage = {"/path/to/storage": str(folder / "storage")}
        (folder / "spark-pipeline.yml").write_text(replaced(example("yaml"), storage))
        (folder / "transformations" / "orders.py").write_text(replaced(example("python"), changes))
        lines = [f"{name} {value}\n" for name, value in SETTINGS.items()]
        (folder / "conf" / "spark-defaults.conf").write_text("".join(lines))

    def run(self) -> str:
        """`spark-pipelines run`, and what it said."""
        paths = os.pathsep.join(path for path in (str(ROOT), os.environ.get("PYTHONPATH", "")) if path)
        # With the last one the server takes a free port; without, it is always the same.
        environment = {
            **os.environ,
            "PYTHONPATH": paths,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_CONF_DIR": str(self.folder / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_TESTING": "1",
        }
        process = subprocess.Popen(
            [SPARK_HOME / "bin" / "spark-pipelines", "run", "--remote", "local[2]"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=environment,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=RUN_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        assert process.returncode == 0, said[-6000:]
        assert "Run is COMPLETED" in said
        return said

    def table(self, name: str) -> str:
        return str(self.folder / "spark-warehouse" / name)


def orders(first: int, last: int) -> list[dict]:
    return [
        {"body": f"order {number}", "keys": f"key-{number}", "tag": "ABC"[number % 3]}
        for number in range(first, last)
    ]


def test_a_table_a_view_and_a_topic_have_every_message_once_after_each_run(spark, node, tmp_path) -> None:
    source, target = node.topic("orders"), node.topic("order-copies")
    pipeline = Pipeline(
        tmp_path,
        {
            "127.0.0.1:9876": node.address,
            'topic="orders"': f'topic="{source}"',
            '"order-copies"': f'"{target}"',
        },
    )
    for first, last in ((0, FIRST), (FIRST, FIRST + MORE)):
        node.send(source, orders(first, last))
        pipeline.run()
        sent = orders(0, last)
        rows = sorted((one["body"], one["keys"], one["tag"]) for one in sent)
        table = spark.read.parquet(pipeline.table("orders")).collect()
        assert sorted((bytes(row.body).decode(), row["keys"], row.tags) for row in table) == rows
        assert len({(row.queue_id, row.queue_offset) for row in table}) == last
        view = spark.read.parquet(pipeline.table("by_tag")).collect()
        assert sorted((row.tags, row.messages) for row in view) == sorted(
            Counter("ABC"[n % 3] for n in range(last)).items()
        )
        copies = []
        for queue in node.admin.queues(target):
            offset = 0
            while page := node.admin.read_messages(queue, offset, limit=1_000):
                copies += [(message.body.decode(), " ".join(message.keys), message.tag) for message in page]
                offset = page[-1].queue_offset + 1
        assert sorted(copies) == rows
