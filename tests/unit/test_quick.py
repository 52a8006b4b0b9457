"""What `make quick` chooses, and the list of tests that start processes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from scripts import history, imports, quick, uncompiled
from scripts.quick import Choice

ROOT = Path(__file__).resolve().parents[2]
ROOMS: dict[str, list[str]] = tomllib.loads((ROOT / quick.PROCESSES).read_text(encoding="utf-8"))["rooms"]


def choice(file: str, rank: int, seconds: float, failures: int = 0) -> Choice:
    return Choice(file, rank, "because", seconds, failures)


def chosen(*changed: str) -> dict[str, Choice]:
    return {found.file: found for found in quick.choices(changed)}


def test_every_package_has_its_tests_that_start_processes() -> None:
    packages = {path.stem for path in (ROOT / "penstock").iterdir() if path.stem.isidentifier()}
    assert packages - {"__init__", "__pycache__", "py"} == set(ROOMS)


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_every_pattern_of_the_list_finds_a_test(room: str) -> None:
    assert [pattern for pattern in ROOMS[room] if not [*ROOT.glob(pattern)]] == []


@pytest.mark.parametrize("folder", ["tests/abuse", "tests/fault", "tests/simulation", "tests/spark"])
def test_the_list_names_every_test_of_a_folder_of_processes(folder: str) -> None:
    named = {path for patterns in ROOMS.values() for pattern in patterns for path in ROOT.glob(pattern)}
    assert sorted(path.name for path in {*(ROOT / folder).glob("test_*.py")} - named) == []


def test_a_changed_module_brings_its_tests_and_those_of_its_importers() -> None:
    found = chosen("penstock/store/consume_queue.py")
    assert found["tests/unit/store/test_consume_queue.py"].rank == 2
    assert found["tests/unit/store/test_key_index.py"].reason == "tests a package that changed"
    assert found["tests/fault/test_broker_kill.py"].rank == 3
    assert any(one.rank == 4 for one in found.values())
    assert "tests/unit/nameserver/test_route_table.py" not in found


def test_a_changed_test_comes_first_and_a_helper_brings_the_tests_that_import_it() -> None:
    found = quick.choices(["tests/unit/store/test_segment.py", "tests/support/store_checks.py"])
    assert (found[0].file, found[0].rank) == ("tests/unit/store/test_segment.py", 1)
    assert "tests/fault/test_crash_kill.py" in {one.file for one in found}


def test_files_that_belong_to_no_test_choose_nothing() -> None:
    assert chosen("README.md", "LICENSE") == {}


def test_what_finds_more_in_less_time_comes_first() -> None:
    slow, keen, quiet = choice("slow", 2, 20, 1), choice("keen", 2, 2, 3), choice("quiet", 2, 2)
    assert sorted([slow, quiet, keen], key=lambda one: one.order) == [keen, quiet, slow]


def test_what_does_not_fit_is_left_out_and_a_changed_test_is_not() -> None:
    own, large, small = choice("own", 1, 50), choice("large", 2, 100), choice("small", 3, 10)
    assert quick.fill([own, large, small], 60) == ([own, small], [large])
    assert quick.fill([own], 1) == ([own], [])


def test_a_package_that_is_not_there_is_an_error_that_names_those_that_are() -> None:
    with pytest.raises(SystemExit, match=r"no package penstock/stroe; there are .*store"):
        quick.files_of_room("stroe")
    assert "penstock/store/segment.py" in quick.files_of_room("store")
    assert quick.files_of_room("store.segment") == ["penstock/store/segment.py"]


def test_a_revision_that_is_not_there_is_an_error_without_a_traceback() -> None:
    with pytest.raises(SystemExit, match="no revision 'nosuch'"):
        quick.changed_files("nosuch")


def test_a_test_imports_what_its_helpers_import() -> None:
    file = "tests/fault/test_crash_kill.py"
    assert "tests.support.store_checks" in imports.direct(file)
    assert imports.direct("tests/support/store_checks.py") <= imports.with_helpers(file)
    assert "hypothesis" not in imports.with_helpers(file), "conftest.py of all tests is left out"


def test_the_uncompiled_form_runs_the_tests_of_hot_modules_and_the_corpora() -> None:
    files = uncompiled.files()
    assert {
        *uncompiled.CORPORA,
        "tests/unit/store/test_hot_forms.py",
        "tests/compat/test_golden_bytes.py",
    } <= files
    assert "tests/unit/nameserver/test_route_table.py" not in files
    assert all((ROOT / file).exists() for file in files)


def test_times_of_this_clone_win_over_those_of_the_repository(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / history.COMMITTED).write_text(
        '{"short": {"tests/test_a.py": 9, "tests/test_b.py": 4}, "long": {}, "failures": {"tests/test_a.py": 1}}'
    )
    history.keep("short", {"tests/test_a.py::test_x": 1.5}, ["tests/test_a.py"], [], tmp_path)
    history.keep("short", {"tests/test_a.py::test_y": 2.0}, [], ["tests/test_a.py::test_y"], tmp_path)
    known = history.load(tmp_path)
    assert known.of_files("short") == {"tests/test_a.py": 3.5, "tests/test_b.py": 4}
    assert known.failures == {"tests/test_a.py": 2}
    history.keep("short", {"tests/test_a.py::test_y": 2.0}, ["tests/test_a.py"], [], tmp_path)
    assert history.load(tmp_path).of_files("short")["tests/test_a.py"] == 2.0
    (tmp_path / history.LOCAL).write_text("{torn")
    assert history.load(tmp_path).of_files("short")["tests/test_a.py"] == 9
