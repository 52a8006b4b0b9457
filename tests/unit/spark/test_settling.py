"""Only processes that Spark runs for its Python code tell the garbage collector to forget what is loaded."""

import subprocess
import sys

import pytest

PROGRAM = """
import gc, importlib.machinery, sys
if sys.argv[1]:
    sys.modules["__main__"].__spec__ = importlib.machinery.ModuleSpec(sys.argv[1], None)
from penstock.spark.settling import settle
settle()
first = gc.get_freeze_count()
kept = [[number] for number in range(10_000)]
settle()
print(first > 1_000, gc.get_freeze_count() == first)
"""


@pytest.mark.parametrize(
    ("main", "is_sparks"),
    [
        ("pyspark.daemon", True),
        ("pyspark.worker", True),
        ("pyspark.sql.worker.plan_data_source_read", True),
        ("pyspark.pipelines.cli", False),
        ("workers.pyspark", False),
        ("", False),
    ],
)
def test_what_is_loaded_is_forgotten_once_and_only_in_sparks_processes(main: str, is_sparks: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, main], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == [str(is_sparks), "True"]
