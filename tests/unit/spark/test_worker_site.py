"""What runs before a Spark worker: PySpark from its directory, and nothing else changed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark.session import WORKER_SITE
from penstock.spark.worker_site import sitecustomize


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A directory with an installed PySpark and Py4J, as pip makes it."""
    for package in ("pyspark", "py4j"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "pyspark" / "python" / "lib").mkdir(parents=True)
    return tmp_path


def zips(root: Path) -> list[str]:
    library = root / "pyspark" / "python" / "lib"
    return [str(library / "pyspark.zip"), str(library / "py4j-0.10.9.9-src.zip")]


def test_the_zips_of_an_installed_pyspark_are_taken_out(installed: Path) -> None:
    others = ["/somewhere", str(installed)]
    assert sitecustomize.without_zips([*zips(installed), *others]) == others


def test_the_directory_takes_their_place_if_it_is_not_on_the_path(installed: Path) -> None:
    assert sitecustomize.without_zips([*zips(installed), "/somewhere"]) == [str(installed), "/somewhere"]


def test_zips_of_a_spark_without_an_installation_stay(tmp_path: Path) -> None:
    """The version must never change: a distribution's zips are its own, whatever else is installed."""
    library = tmp_path / "spark" / "python" / "lib"
    paths = [str(library / "pyspark.zip"), *zips(tmp_path), "/x/pyspark.zip", "relative.zip", ""]
    assert sitecustomize.without_zips(paths) == paths


def test_importing_it_changes_nothing() -> None:
    assert "sitecustomize" not in sys.modules or sys.modules["sitecustomize"] is not sitecustomize


def test_python_runs_it_and_the_one_that_it_hides(installed: Path, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys; sys.hidden_was_run = True\n")
    path = os.pathsep.join([*zips(installed), str(WORKER_SITE), str(hidden)])
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print(getattr(sys, 'hidden_was_run', False), sys.path)"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("True ")
    assert "pyspark.zip" not in done.stdout
    assert str(installed) in done.stdout
