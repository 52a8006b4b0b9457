"""The plugin that counts what tests prove (tests/proofs.py), run by a pytest of its own on a small project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import marked_tests, outcomes
from tests import proofs

ROOT = Path(__file__).resolve().parents[2]
# What costs time in every process and has no part in it.
WITHOUT = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:penstock")
CONFTEST = """
import os
import pytest
from tests import proofs

def pytest_configure(config):
    config.addinivalue_line("markers", "seed(id): a line")
    config.addinivalue_line("markers", "feature(name, system): a cell")
    proofs.register(config, pure=os.environ.get("PENSTOCK_PURE") == "1")
"""
SEEDS = """
| line | what it says | proven by | decided |
|---|---|---|---|
| S0-1 | one | | |
| S0-2 | two | | |
| S0-3 | three | | because |
| S0-4 | four | | pending: somebody |
| S0-5 | five | | |
"""
FIRST = """
import os
import pytest

@pytest.mark.seed("S0-1")
@pytest.mark.feature("order", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.parametrize("client", ["java-5.3.3", "java-4.9.8"])
def test_one(client):
    assert client != os.environ.get("BREAK")

@pytest.mark.seed("S0-5")
def test_five():
    pytest.skip("not here")
"""
SECOND = """
import os
import pytest

pytestmark = [pytest.mark.feature("order", "rocketmq-5.3")]

class TestTwo:
    @pytest.mark.seed("S0-2")
    def test_two(self):
        assert "two" != os.environ.get("BREAK")

@pytest.fixture(params=["rocketmq", "penstock"])
def server(request):
    return request.param

@pytest.mark.feature("python-clients", "rocketmq-5.3")
def test_at(server):
    pass
"""


class Project:
    """A project of two test files and five lines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in {
            "conftest.py": CONFTEST,
            "docs/seeds.md": SEEDS,
            "tests/unit/test_first.py": FIRST,
            "tests/fault/test_second.py": SECOND,
            "pytest.ini": "[pytest]\naddopts = --import-mode=importlib --strict-markers\n",
        }.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def run(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """The exit status, and what was printed."""
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *WITHOUT, *arguments],
            cwd=self.folder,
            env={**self._clean(), "PYTHONPATH": str(ROOT), **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return ended.returncode, ended.stdout + ended.stderr

    @staticmethod
    def _clean() -> dict[str, str]:
        """Without what the surrounding run of pytest says to its own processes."""
        return {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "PENSTOCK_"))}

    def results(self, kind: str) -> dict[str, list[object]]:
        """Outcome, lines and cells of each case."""
        text = (self.folder / "build" / "results" / f"{kind}.json").read_text(encoding="utf-8")
        tests = json.loads(text)["tests"]
        return {node: [found["outcome"], found["seeds"], found["features"]] for node, found in tests.items()}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def said(output: str) -> list[str]:
    """What the section about seeds says."""
    lines = output.splitlines()
    start = next(number for number, line in enumerate(lines) if " seeds " in line)
    return [
        line.strip()
        for line in lines[start + 1 :]
        if line.strip().startswith(("seed lines", "left", "their"))
    ]


def test_a_whole_run_on_two_workers_counts_every_line(project: Project) -> None:
    status, output = project.run("tests", "-n", "2", "--dist", "loadfile")
    assert status == 0, output
    assert said(output) == [
        "seed lines: 5. 2 are proven by tests that passed in this run, 1 are decided in writing (docs/seeds.md), "
        "2 are left",
        "left: S0-4 S0-5",
    ]
    order = ["order", "rocketmq-5.3"]
    assert project.results("compiled") == {
        "tests/unit/test_first.py::test_one[java-5.3.3]": ["passed", ["S0-1"], [order]],
        "tests/unit/test_first.py::test_one[java-4.9.8]": ["passed", ["S0-1"], [["order", "rocketmq-4.9"]]],
        "tests/unit/test_first.py::test_five": ["skipped", ["S0-5"], []],
        "tests/fault/test_second.py::TestTwo::test_two": ["passed", ["S0-2"], [order]],
        # At RocketMQ itself a test says nothing of Penstock but what its clients do there.
        "tests/fault/test_second.py::test_at[rocketmq]": ["passed", [], [["python-clients", "rocketmq-5.3"]]],
        "tests/fault/test_second.py::test_at[penstock]": ["passed", [], [order]],
    }


def test_a_part_says_that_it_is_one_and_leaves_the_rest_of_the_file(project: Project) -> None:
    project.run("tests")
    status, output = project.run("tests/unit", BREAK="java-4.9.8")
    assert status == 1
    assert said(output) == [
        "seed lines: 0 proven here, of 2 that the tests of this run name (part of the tests ran; there are 5 lines)",
        "their tests failed: S0-1",
        "their tests were skipped: S0-5",
    ]
    kept = project.results("compiled")
    assert kept["tests/fault/test_second.py::TestTwo::test_two"][0] == "passed"
    assert kept["tests/unit/test_first.py::test_one[java-4.9.8]"][0] == "failed"
    # The uncompiled form has a file of its own.
    project.run("tests/unit", PENSTOCK_PURE="1")
    assert len(project.results("pure")) == 3
    assert len(project.results("compiled")) == 6


WRONG = {
    'seed("S9-1")': "docs/seeds.md has no line S9-1",
    'feature("teleport", "tubemq")': "has no feature 'teleport'",
    'feature("order", "kafka")': "'order' is no feature of 'kafka'",
    'feature("pop", "rocketmq-4.9")': "'pop' is no feature of 'rocketmq-4.9'",
    'feature("order")': "feature('order') names no system",
    'seed("S0-" + "1")': "write its markers out",
}


def test_names_that_nobody_knows_end_the_run(project: Project) -> None:
    tests = [f"@pytest.mark.{marker}\ndef test_{n}():\n    pass\n" for n, marker in enumerate(WRONG)]
    project.write("tests/unit/test_third.py", "import pytest\n\n" + "\n".join(tests))
    status, output = project.run("tests")
    assert status == 4, output
    for number, complaint in enumerate(WRONG.values()):
        assert f"tests/unit/test_third.py::test_{number}: " in output
        assert complaint in output
    # With workers, too, and before anything has run.
    status, output = project.run("tests", "-n", "1")
    assert (status, "docs/seeds.md has no line S9-1" in output) == (4, True), output
    assert not (project.folder / "build").exists()


def test_a_marker_that_only_a_worker_can_see_fails_its_test(project: Project) -> None:
    project.write(
        "tests/unit/test_third.py",
        "import pytest\n\n@pytest.mark.seed('S0-' + '1')\ndef test_x():\n    pass\n",
    )
    status, output = project.run("tests/unit/test_third.py", "-n", "1")
    assert (status, "write its markers out" in output) == (1, True), output


def test_a_test_with_rocketmq_says_which_release_it_ran_with() -> None:
    both = [("order", "rocketmq-4.9"), ("order", "rocketmq-5.3"), ("offsets-in-zookeeper", "tubemq")]
    assert proofs.counts_for({"pair": ("4.9.8", "plain_acl.yml")}, both) == [both[2], both[0]]
    assert proofs.counts_for({"release": "5.3.3", "server": "penstock"}, both) == [both[2], both[1]]
    assert proofs.counts_for({"server": "rocketmq"}, both) == []
    assert proofs.counts_for({"topic": "not-a-release", "count": 5}, both) == [both[2], *both[:2]]


def test_kinds_follow_folders_and_form() -> None:
    assert outcomes.kind_of("tests/interop/test_a.py::test_b", pure=False) == "interop"
    assert outcomes.kind_of("tests/unit/test_a.py::test_b[c]", pure=True) == "pure"


def test_a_file_of_results_that_is_torn_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_RESULTS", str(tmp_path))
    assert outcomes.load("pure").tests == {}
    (tmp_path / "pure.json").write_text('{"kind": ')
    with pytest.raises(ValueError, match=r"pure\.json cannot be read.*Remove it"):
        outcomes.load("pure")


def test_markers_are_read_wherever_they_can_be_written() -> None:
    source = """
import pytest
pytestmark = pytest.mark.seed("S0-1")
later = pytest.mark.feature("order", "tubemq", "fifth-seed")

@later
@pytest.mark.parametrize("a", [pytest.param(1, marks=[pytest.mark.seed("S0-2")]), 2])
async def test_a(a): ...

@pytest.mark.seed("S0-3", "S0-4")
class TestB:
    def test_b(self): ...
    def helper(self): ...
"""
    found = {test.node: test for test in marked_tests.of_source("tests/test_x.py", source)}
    assert sorted(found) == ["tests/test_x.py::TestB::test_b", "tests/test_x.py::test_a"]
    assert found["tests/test_x.py::test_a"].seeds == {"S0-1", "S0-2"}
    assert found["tests/test_x.py::test_a"].features == {("order", "tubemq"), ("order", "fifth-seed")}
    assert found["tests/test_x.py::TestB::test_b"].seeds == {"S0-1", "S0-3", "S0-4"}
