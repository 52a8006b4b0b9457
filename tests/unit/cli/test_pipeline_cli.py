"""The Spark commands as far as they go without Spark: what is listed, what is refused, what is shown."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from penstock.cli.main import root
from penstock.cli.pipeline import PIPELINES
from penstock.cli.pipeline_options import Job, pipeline_options
from penstock.cli.pipeline_steps import TimeType
from penstock.errors import PenstockError
from penstock.spark.pipelines.sql import Places

ROOT = Path(__file__).resolve().parents[3]
FILE = """\
nameserver = "127.0.0.1:1"
[sources.orders]
topic = "orders"
[sinks.out]
from = "orders"
path = "out"
"""


def invoke(*arguments: object) -> Any:
    return CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(root, ["pipeline", *map(str, arguments)])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "p.toml"
    path.write_text(FILE)
    return path


# -- what is there -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(PIPELINES))
def test_every_pipeline_is_a_command_with_the_help_that_is_listed(name: str) -> None:
    command = root.get_command(click.Context(root), "pipeline")
    assert isinstance(command, click.Group)
    found = command.get_command(click.Context(command), name)
    assert found is not None
    assert found.get_short_help_str(200).rstrip(".") == PIPELINES[name][2].rstrip(".")


ACCESS = {"--access-key", "--secret-file", "--secret-key", "--credentials"}
ACCESS |= {"--tls", "--tls-trusted", "--tls-certificate"}
COMMON = {"--nameserver", "--master", "--checkpoint", "--conf", "--json", *ACCESS}
ON_A_PAGE = sorted((set(PIPELINES) - {"prepare"}) | {"sql"})


@pytest.mark.parametrize("name", ON_A_PAGE)
def test_every_command_is_on_its_page_with_its_options(name: str) -> None:
    page = (ROOT / "docs" / "spark" / f"{name}.md").read_text(encoding="utf-8")
    command = root.get_command(click.Context(root), name if name == "sql" else "pipeline")
    assert command is not None
    if isinstance(command, click.Group):
        command = command.get_command(click.Context(command), name)
    commands = list(command.commands.values()) if isinstance(command, click.Group) else [command]
    for item in commands:
        assert item is not None
        options = [parameter for parameter in item.params if isinstance(parameter, click.Option)]
        names = [(*option.opts, *option.secondary_opts) for option in options if option.opts[0] not in COMMON]
        assert [forms for forms in names if not any(form in page for form in forms)] == []
    assert f"penstock {'' if name == 'sql' else 'pipeline '}{name}" in page


def test_the_common_options_are_on_the_first_page() -> None:
    page = (ROOT / "docs" / "spark" / "README.md").read_text(encoding="utf-8")
    assert [option for option in sorted(COMMON) if f"`{option}" not in page] == []
    assert "penstock pipeline prepare" in page


def test_an_unknown_pipeline_is_refused() -> None:
    result = invoke("archve")
    assert result.exit_code == 2
    assert "No such command 'archve'" in result.stderr


def test_without_pyspark_a_command_says_what_to_install(file: Path) -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None; sys.modules['py4j'] = None\n"
        "from penstock.cli.main import root; root.main(sys.argv[1:])"
    )
    for arguments in (["stream", "run", str(file)], ["stream", "validate", str(file)], ["prepare"]):
        done = subprocess.run(
            [sys.executable, "-c", code, "pipeline", *arguments],
            cwd=ROOT,
            env=os.environ,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1, done.stderr
        assert "pip install '.[spark]'" in done.stderr


# -- options -------------------------------------------------------------------------------------------------------


def job_of(*arguments: str, **left_out: bool) -> Job:
    found: list[Job] = []

    @click.command()
    @pipeline_options(**left_out)
    def command(job: Job) -> None:
        found.append(job)

    command.main(list(arguments), standalone_mode=False)
    return found[0]


def test_options_become_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_NAMESERVER", raising=False)
    job = job_of(
        "--master", "local[4]", "--checkpoint", "c", "--json", "--conf", "spark.a=1", "--conf", "spark.b=x=y"
    )
    assert job == Job(None, "local[4]", "c", {"spark.a": "1", "spark.b": "x=y"}, True)
    assert job.nameserver == "127.0.0.1:9876"
    assert job_of("--nameserver", "10.0.0.1:9876").nameserver == "10.0.0.1:9876"


def test_the_environment_may_name_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_NAMESERVER", "10.0.0.2:9876")
    monkeypatch.setenv("PENSTOCK_SPARK_MASTER", "spark://host:7077")
    job = job_of()
    assert (job.nameserver, job.master) == ("10.0.0.2:9876", "spark://host:7077")


def test_options_that_mean_nothing_to_a_command_are_not_there() -> None:
    assert job_of(nameserver=False, checkpoint=False).checkpoint is None
    with pytest.raises(click.NoSuchOption):
        job_of("--checkpoint", "c", checkpoint=False)


def test_what_is_no_setting_of_spark_is_refused() -> None:
    with pytest.raises(PenstockError, match="executor\\.memory: no setting of Spark"):
        job_of("--conf", "executor.memory=4g")


# -- stream --------------------------------------------------------------------------------------------------------


def test_validate_without_spark_judges_the_file_alone(file: Path) -> None:
    result = invoke("stream", "validate", file, "--no-spark")
    assert result.exit_code == 0, result.output
    assert "is fine, as far as can be told without Spark" in result.stdout
    file.write_text(FILE.replace("topic", "topik"))
    result = invoke("stream", "validate", file, "--no-spark")
    assert result.exit_code == 1
    assert "line 3, sources.orders.topik: unknown key; did you mean topic?" in result.stdout
    result = invoke("stream", "validate", file, "--no-spark", "--json")
    assert result.exit_code == 1
    assert {
        "line": 3,
        "where": "sources.orders.topik",
        "message": "unknown key; did you mean topic?",
    } in json.loads(result.stdout)


def test_a_file_without_a_name_server_gets_the_default_one(file: Path) -> None:
    file.write_text(FILE.partition("\n")[2])
    assert invoke("stream", "validate", file, "--no-spark").exit_code == 0


def test_a_file_that_is_not_there_is_told_in_a_line(tmp_path: Path) -> None:
    for command in ("validate", "run", "status"):
        result = invoke("stream", command, tmp_path / "none.toml")
        assert result.exit_code == 2
        assert "there is no file" in result.stderr
        assert result.stderr.count("\n") == 1


def test_status_shows_what_is_known_and_says_what_is_not(file: Path) -> None:
    result = invoke("stream", "status", file)
    assert result.exit_code == 0, result.output
    assert "not running here" in result.stdout
    assert "out" in result.stdout
    offsets = file.parent / "p-checkpoint" / "out" / "offsets"
    offsets.mkdir(parents=True)
    (offsets.parent / "commits").mkdir()
    (offsets / "3").write_text('v1\n{"batchTimestampMs": 1700000000000}\n{"orders/a/0": 7}')
    (offsets.parent / "commits" / "3").write_text("v1\n{}")
    result = invoke("stream", "status", file)
    assert result.exit_code == 0, result.output
    assert "2023-11-14T22:13:20.000Z" in result.stdout
    assert "the lag is not known: " in result.stderr
    found = json.loads(invoke("stream", "status", file, "--json").stdout)
    assert (found["sinks"][0]["batch"], found["sinks"][0]["lag"], found["pid"]) == (3, None, None)


@pytest.mark.parametrize("text", ["2025-01-31T15:00", "2025-01-31T10:00-05:00", "1738335600000"])
def test_as_of_means_the_same_in_the_command_and_in_python(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine whose time is not UTC; other times of commands are local there."""
    seen: list[Places] = []

    class Tables:
        def __init__(self, spark: None, places: Places) -> None:
            seen.append(places)

        def info(self) -> list[Any]:
            return []

    monkeypatch.setattr("penstock.spark.pipelines.sql.TopicTables", Tables)
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "America/New_York")
        time.tzset()
        line = ["sql", "--archive", str(tmp_path), "--archive-only", "--as-of", text]
        result = CliRunner().invoke(root, line)
        local = TimeType().convert("2025-01-31T10:00", None, None)
    time.tzset()
    assert result.exit_code == 0, result.output
    in_python = Places(archive=str(tmp_path), as_of=text)
    assert seen[0].as_of_ms == in_python.as_of_ms == local == 1_738_335_600_000
