"""The example of docs/spark/stream.md for Spark Declarative Pipelines, run twice, in the long variant by its command.

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

from penstock.spark.session import WORKER_SITE
from tests.effort import LONG, by_length
from tests.spark.processes import QUICK_SETTINGS

ROOT = Path(__file__).resolve().parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
RUN_S = 400.0
REMOTE = "local[2]"
# What the command runs in the end, once for each line of input. A run starts Spark's server and stops it; here both
# of them are of one JVM, while the command starts four for each.
SEVERAL_RUNS = """
import os, sys
from pyspark.pipelines import cli
remote, sys.argv = sys.argv[1], ["spark-pipelines", "run"]
for _ in sys.stdin:
    os.environ["SPARK_REMOTE"] = remote
    cli.main()
    print("run ended", flush=True)
"""
FIRST, MORE = by_length(60, 120), by_length(30, 60)
# Of the extra pyspark[pipelines], which is part of ours.
MISSING = [
    name
    for name in ("pyspark.pipelines", "grpc", "grpc_status", "google.protobuf", "yaml", "pandas", "zstandard")
    if importlib.util.find_spec(name) is None
]
SETTINGS = QUICK_SETTINGS | {
    "spark.sql.catalogImplementation": "hive",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "768m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.java,
    pytest.mark.long,
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

        self._process: subprocess.Popen[str] | None = None

    def run(self) -> None:
        """A run from start to end."""
        process = self._process or self._start()
        said = []
        if LONG:
            said, _ = process.communicate(timeout=RUN_S)
            self._process = None
            assert process.returncode == 0, said[-6000:]
            assert "Run is COMPLETED" in said
            return
        process.stdin.write("run\n")
        process.stdin.flush()
        for line in process.stdout:
            said.append(line)
            if line == "run ended\n":
                break
        else:
            pytest.fail("".join(said)[-6000:])
        assert any("Run is COMPLETED" in line for line in said), "".join(said)[-6000:]

    def _start(self) -> "subprocess.Popen[str]":
        paths = os.pathsep.join(
            path for path in (str(WORKER_SITE), str(ROOT), os.environ.get("PYTHONPATH", "")) if path
        )
        # With the last but one the server takes a free port; without, it is always the same.
        environment = {
            **os.environ,
            "PYTHONPATH": paths,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_CONF_DIR": str(self.folder / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_TESTING": "1",
            # Four JVMs start in a run of the command: a short life for each, not only for the one with the settings.
            "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        command = [SPARK_HOME / "bin" / "spark-pipelines", "run", "--remote", REMOTE]
        self._process = subprocess.Popen(
            command if LONG else [sys.executable, "-c", SEVERAL_RUNS, REMOTE],
            stdin=subprocess.DEVNULL if LONG else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=environment,
            start_new_session=True,
        )
        return self._process

    def close(self) -> None:
        """Whatever is left of it ends here, its JVM as well."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        process.stdout.close()

    def table(self, name: str) -> str:
        return str(self.folder / "spark-warehouse" / name)


def orders(first: int, last: int) -> list[dict]:
    return [
        {"body": f"order {number}", "keys": f"key-{number}", "tag": "ABC"[number % 3]}
        for number in range(first, last)
    ]


def test_a_table_a_view_and_a_topic_have_every_message_once_after_each_run(
    spark, node, tmp_path, request
) -> None:
    source, target = node.topic("orders"), node.topic("order-copies")
    pipeline = Pipeline(
        tmp_path,
        {
            "127.0.0.1:9876": node.address,
            'topic="orders"': f'topic="{source}"',
            '"order-copies"': f'"{target}"',
        },
    )
    request.addfinalizer(pipeline.close)
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
