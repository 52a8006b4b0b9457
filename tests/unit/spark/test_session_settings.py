"""What a session is made with, by master; no JVM is started here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import OptionError, PenstockError
from penstock.spark import java, session
from penstock.spark.session import (
    WORKER_SITE,
    _environment,
    _variables,
    _writing_to,
    cores_of,
    is_local,
    settings_for,
    with_attempts,
)

ROOT = Path(__file__).resolve().parents[3]

QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"


@pytest.fixture(autouse=True)
def no_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SPARK_CACHE", "off")


@pytest.mark.parametrize(
    ("master", "local", "cores", "attempts"),
    [
        ("local", True, 1, "local[1,4]"),
        ("local[3]", True, 3, "local[3,4]"),
        ("local[3,1]", True, 3, "local[3,1]"),
        ("local[*]", True, None, "local[*,4]"),
        ("local-cluster[2,1,1024]", True, 2, "local-cluster[2,1,1024]"),
        ("spark://host:7077", False, None, "spark://host:7077"),
        ("yarn", False, None, "yarn"),
        ("k8s://https://host", False, None, "k8s://https://host"),
    ],
)
def test_masters(master: str, local: bool, cores: int | None, attempts: str) -> None:
    assert is_local(master) is local
    assert with_attempts(master) == attempts
    if cores is not None:
        assert cores_of(master) == cores


def test_every_master_gets_what_matters_to_the_source() -> None:
    for master in ("local[4]", "spark://host:7077", None):
        settings = settings_for(master, {})
        assert settings["spark.python.unix.domain.socket.enabled"] == "true"
        assert settings["spark.sql.execution.arrow.maxRecordsPerBatch"] == "8192"
        assert settings["spark.sql.session.timeZone"] == "UTC"


def test_only_local_masters_stay_on_this_machine() -> None:
    local, cluster = settings_for("local[4]", {}), settings_for("spark://host:7077", {})
    assert local["spark.driver.bindAddress"] == local["spark.driver.host"] == "127.0.0.1"
    assert local["spark.sql.shuffle.partitions"] == "4"
    assert local["spark.ui.enabled"] == "false"
    assert not {"spark.driver.host", "spark.sql.shuffle.partitions", "spark.ui.enabled"} & set(cluster)


def test_the_caller_wins() -> None:
    given = {"spark.ui.enabled": "true", "spark.sql.shuffle.partitions": "7"}
    assert settings_for("local[4]", given) | given == settings_for("local[4]", given)


def test_the_archive_of_classes_is_added_to_java_options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive = tmp_path / "classes.jsa"
    monkeypatch.setattr(java, "existing_archive", lambda: archive)
    options = "spark.driver.extraJavaOptions"
    assert settings_for("local[4]", {})[options] == f"-XX:SharedArchiveFile={archive} {QUIET}"
    assert (
        settings_for("local[4]", {options: "-Xss4m"})[options]
        == f"-Xss4m -XX:SharedArchiveFile={archive} {QUIET}"
    )
    own = {options: "-XX:SharedArchiveFile=mine"}
    assert settings_for("local[4]", own)[options] == "-XX:SharedArchiveFile=mine"
    assert options not in settings_for(None, {})


def test_what_is_no_setting_is_refused() -> None:
    with pytest.raises(OptionError, match="shuffle: no setting of Spark"):
        session(shuffle=3)
    with pytest.raises(OptionError, match="Spark Connect"):
        settings_for("sc://host", {})


def test_workers_find_this_source_tree_and_the_site_directory() -> None:
    variables = _variables(local=True)
    paths = variables["PYTHONPATH"].split(os.pathsep)
    assert paths[0] == str(WORKER_SITE)
    assert str(ROOT) in paths
    assert variables["PYSPARK_PYTHON"] == variables["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert variables["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert "SPARK_LOCAL_IP" not in _variables(local=False)


def test_everything_on_a_cluster_runs_with_one_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources that Spark finds run with the driver's, registered ones and functions with the other."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "python-of-the-cluster")
    assert _variables(local=False)["PYSPARK_PYTHON"] == "python-of-the-cluster"
    assert "PYSPARK_PYTHON" not in _variables(local=False, submitted=True)
    monkeypatch.setenv("PYSPARK_PYTHON", "mine")
    assert _variables(local=False)["PYSPARK_PYTHON"] == "mine"


def test_the_environment_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_A", "before")
    monkeypatch.delenv("PENSTOCK_B", raising=False)
    with _environment({"PENSTOCK_A": "1", "PENSTOCK_B": "2"}):
        assert (os.environ["PENSTOCK_A"], os.environ["PENSTOCK_B"]) == ("1", "2")
    assert os.environ["PENSTOCK_A"] == "before"
    assert "PENSTOCK_B" not in os.environ


def test_standard_error_of_what_starts_meanwhile_goes_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "spark.log"
    with _writing_to(log) as output:
        subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write('noise')"], check=True, **output)
        os.write(2, b"shown meanwhile\n")
    assert log.read_text() == "noise"
    with _writing_to(None) as output:
        assert output == {}


# -- the door ----------------------------------------------------------------------------------------------------


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        check=False,
        capture_output=True,
        text=True,
    )


def test_the_door_opens_without_pyspark() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import penstock.spark, penstock.errors\n"
        "assert 'session' in dir(penstock.spark)\n"
        "try:\n    penstock.spark.session()\n"
        "except penstock.errors.PenstockError as error:\n    print(error)\n"
    )
    done = python(code)
    assert (
        done.stdout.strip() == "pyspark is not installed; in a clone of Penstock: pip install '.[spark]'"
    ), done.stderr


def test_the_door_imports_nothing_by_itself() -> None:
    done = python(
        "import sys, penstock.spark; print([m for m in ('pyspark', 'pyarrow', 'numpy') if m in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_a_name_of_the_door_is_the_function_also_after_its_module_was_imported() -> None:
    code = (
        "from penstock.spark.session import settings_for\nimport penstock.spark\n"
        "print(penstock.spark.session.__name__, callable(penstock.spark.session))"
    )
    assert python(code).stdout.strip() == "session True"


def test_an_unknown_name_is_an_attribute_error() -> None:
    import penstock.spark

    with pytest.raises(AttributeError, match="no attribute 'sesion'"):
        _ = penstock.spark.sesion


# -- Java --------------------------------------------------------------------------------------------------------


def fake_java(folder: Path, version: str) -> Path:
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    path.chmod(0o755)
    return path


def test_an_old_java_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PenstockError, match=r"JAVA_HOME is .* does not run; install Java 17"):
        java.find_java()
    fake_java(tmp_path, "1.8.0_392")
    with pytest.raises(PenstockError, match="is Java 8; install Java 17 or later"):
        java.find_java()


def test_a_new_java_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    path = fake_java(tmp_path, "21.0.2")
    assert java.find_java()[0] == path.resolve()


def test_archives_have_a_place_for_each_java_and_can_be_switched_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "a"))
    fake_java(tmp_path / "a", "17.0.1")
    fake_java(tmp_path / "b", "17.0.2")
    assert java.archive_path() is None
    assert java.make_archive() is None
    monkeypatch.setenv("PENSTOCK_SPARK_CACHE", str(tmp_path / "cache"))
    first = java.archive_path()
    assert first is not None
    assert first.parent == tmp_path / "cache"
    assert java.existing_archive() is None
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "b"))
    assert java.archive_path() != first
    monkeypatch.delenv("PENSTOCK_SPARK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert java.archive_path().parent == tmp_path / "xdg" / "penstock" / "spark"
