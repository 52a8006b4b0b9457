"""The pages about servers and commands: every option is on them, every example runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from penstock.cli import config, rocketmq_config
from penstock.cli.config import SECTIONS, Configuration
from penstock.cli.main import root
from penstock.testing import broker
from scripts.docs_screens import with_screens

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
CLUSTER = {"--timeout", "--tls", "--tls-trusted", "--tls-certificate", "--json"}
CLUSTER |= {"--access-key", "--secret-file", "--secret-key", "--credentials"}
COMMON = {
    "servers.md": {"--config", "--set", "--listen-anywhere", "--log-level", "--json"},
    "commands.md": {"--nameserver", *CLUSTER},
    "dead-letters.md": {"--nameserver", *CLUSTER},
    "sets.md": {"--coordinator", *CLUSTER},
    "security.md": {"--users", "--json"},
}
SHOWN = {
    "servers.md": ("up", "nameserver", "broker", "coordinator"),
    "commands.md": (
        *(f"topic {name}" for name in ("create", "list", "describe", "delete")),
        *("produce", "consume", "message get", "message trace", "status"),
        *(f"group {name}" for name in ("list", "describe", "reset")),
        *(f"push {name}" for name in ("list", "resume")),
    ),
    "dead-letters.md": tuple(f"dlq {name}" for name in ("list", "show", "redrive", "export")),
    "sets.md": (*(f"set {name}" for name in ("list", "describe", "elect", "clean")), "explain group"),
    "security.md": tuple(f"acl {name}" for name in ("add", "remove", "list", "explain")),
}


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def command_at(path: str) -> click.Command:
    command: click.Command = root
    for name in path.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None, path
        command = found
    return command


@pytest.mark.parametrize(("page", "path"), [(page, path) for page, paths in SHOWN.items() for path in paths])
def test_commands_are_shown_with_their_options(page: str, path: str) -> None:
    text = text_of(f"operating/{page}")
    lines = re.findall(rf"^penstock {path}(?: .*)?$", text.partition("```text")[2].partition("```")[0], re.M)
    assert lines, f"{page} does not show `penstock {path}`"
    shown = set(re.findall(r"(?<!\w)--[a-z-]+", " ".join(lines)))
    known = {
        option for parameter in command_at(path).params for option in parameter.opts if option[:1] == "-"
    }
    assert shown == known - COMMON[page]
    assert known >= COMMON[page]
    for option in COMMON[page]:
        assert f"`{option}" in text


def test_screens_on_the_pages_are_those_that_the_commands_show() -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in DOCS.glob("**/*.md")}
    assert sum("<!-- screens: " in text for text in pages.values()) > 0
    for path, text in pages.items():
        assert text == with_screens(text), f"{path.name}: run: make screens"


def test_every_command_is_on_a_page() -> None:
    # Those on Spark have pages of their own: test_pipeline_cli.py. Completion asks no server.
    elsewhere = {"store", "demo", "pipeline", "sql", "completion"}
    on_pages = {path.split()[0] for paths in SHOWN.values() for path in paths} | elsewhere
    assert set(root.list_commands(click.Context(root))) == on_pages


def test_sections_and_refused_keys_are_named() -> None:
    page = text_of("operating/servers.md")
    for section in filter(None, SECTIONS):
        assert f"`{section}`" in page
    for key in rocketmq_config.REFUSED:
        assert f"`{key}" in page, key


def test_the_example_of_a_file_is_accepted(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```toml\n(.*?)^```$", text_of("operating/servers.md"), re.M | re.S)
    (tmp_path / "penstock.toml").write_text(example)
    configuration = Configuration([section for section in SECTIONS if section])
    configuration.add_file(tmp_path / "penstock.toml")
    for section in SECTIONS:
        configuration.options(section, config.options_class(section))
    assert configuration.warnings == []
    assert configuration.given("store", "flush_mode") is not None


def examples() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text_of("quickstart.md"), re.M | re.S)


def test_the_examples_of_the_quickstart_run(tmp_path: Path) -> None:
    scripts = [example for example in examples() if "def test_" not in example]
    assert len(scripts) == 3
    with broker() as address:
        for number, script in enumerate(scripts):
            (tmp_path / f"example{number}.py").write_text(script.replace("127.0.0.1:9876", address))
            done = subprocess.run(
                [sys.executable, "-W", "error", f"example{number}.py"],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert done.stdout


def test_the_example_for_tests_runs(tmp_path: Path) -> None:
    (example,) = [example for example in examples() if "def test_" in example]
    (tmp_path / "test_example.py").write_text(example)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "penstock.testing.plugin"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
