"""The slices of long variants and interop tests that take turns."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import asan, slices, soak

ROOT = Path(__file__).resolve().parents[2]


def test_ten_landings_run_every_long_variant_and_every_interop_test() -> None:
    found = slices.slices()
    assert len(found) == slices.COUNT
    long = sorted(file for one in found for file in one.long)
    interop = sorted(file for one in found for file in one.interop)
    assert long == slices.long_files()
    everything = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests/interop").rglob("test_*.py")}
    assert sorted([*interop, *slices.core()]) == sorted(everything)
    assert all((ROOT / file).exists() for file in slices.core())


def test_one_of_ten_landings_runs_everything_under_sanitizers() -> None:
    assert [one.asan for one in slices.slices() if one.asan] == [asan.files()]
    assert {"tests/unit/store/test_guarded_parsers.py", *asan.FUZZERS} <= set(asan.files())
    assert all((ROOT / file).exists() for file in asan.files())


def test_the_same_files_are_the_same_slices() -> None:
    assert slices.slices() == slices.slices()


def test_the_counter_goes_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = tmp_path / "counter"
    counter.write_text("9\n")
    monkeypatch.setattr(slices, "COUNTER", counter)
    assert slices.number() == 9
    slices.advance()
    assert (slices.number(), counter.read_text()) == (0, "10\n")


FLAKY = """
import pytest

@pytest.mark.long
def test_steady():
    assert {steady}

@pytest.mark.long
def test_flaky():
    assert {flaky}
"""


@pytest.mark.parametrize(
    ("steady", "flaky", "status", "outcome"),
    [(True, False, 0, "FAILED"), (True, True, 0, "passed"), (False, True, 1, "passed")],
)
def test_a_reported_test_runs_and_does_not_fail_its_slice(
    steady: bool,
    flaky: bool,
    status: int,
    outcome: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long\n")
    (tmp_path / "test_one.py").write_text(FLAKY.format(steady=steady, flaky=flaky))
    settings = tmp_path / "slices.toml"
    settings.write_text('reported = ["test_one.py::test_flaky"]\n')
    monkeypatch.setattr(slices, "ROOT", tmp_path)
    monkeypatch.setattr(slices, "SETTINGS", settings)
    assert slices.run(slices.Slice(long=["test_one.py"]), jobs=0, until=None) == status
    assert f"reported, without deciding: {outcome}: test_one.py::test_flaky" in capfd.readouterr().out


def test_at_most_five_tests_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "slices.toml"
    settings.write_text(f"reported = {['test_one.py::test_a'] * 6}\n")
    monkeypatch.setattr(slices, "SETTINGS", settings)
    with pytest.raises(SystemExit, match="6 reported tests, at most 5"):
        slices.reported()


def test_arguments_behind_two_dashes_are_those_of_pytest() -> None:
    assert soak.split(["--minutes", "3", "--", "-k", "kill or crash"]) == (
        ["--minutes", "3"],
        ["-k", "kill or crash"],
    )
    assert soak.split(["--seed", "1"]) == (["--seed", "1"], [])
