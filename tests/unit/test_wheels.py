"""A release as a package index would take it: what is in archive and wheel, and how they run where nothing else is.

The short variant builds the archive, and from it a wheel without compiled modules. The long one does what
`make wheel` does, twice, and installs the archive where there is no compiler.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

import penstock
from scripts import wheels
from tests.effort import LONG
from tests.support.node_process import node_process

ROOT = wheels.ROOT
TIME = 1_767_323_045
ORDINARY = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PYTHON"))}

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git lists the files of the project"),
]


def build_environment(tmp_path: Path) -> tuple[Path, Path]:
    folder, out = tmp_path / "build", tmp_path / "out"
    folder.mkdir(parents=True)
    out.mkdir()
    return folder, out


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels.source_archive(*build_environment(tmp_path_factory.mktemp("first")), TIME)


def text_in(file: Path, name: str) -> str:
    return dict(wheels.contents(file))[name].decode()


# -- the archive ---------------------------------------------------------------------------------------------


def test_the_archive_has_the_files_of_the_project_and_no_others(archive: Path) -> None:
    assert wheels.left_out(archive) == (set(), set())
    assert wheels.leaks(archive) == []


def test_the_same_files_give_the_same_bytes(archive: Path, tmp_path: Path) -> None:
    again = wheels.source_archive(*build_environment(tmp_path), TIME)
    assert again.read_bytes() == archive.read_bytes()


def test_a_leak_would_be_noticed(tmp_path: Path) -> None:
    wheel = tmp_path / "penstock-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("penstock/_hot/frames.so", f"rpath={sys.base_prefix}/lib")
        packed.writestr("penstock/_hot/reads.so", "rpath=$ORIGIN")
    assert f"penstock/_hot/frames.so names {sys.base_prefix}" in wheels.leaks(wheel)
    assert "reads.so" not in str(wheels.leaks(wheel))


def test_the_metadata_is_what_an_index_takes(archive: Path) -> None:
    """The rules of `twine check --strict`; the long variant runs it."""
    about = Metadata.from_email(text_in(archive, "PKG-INFO"), validate=True)
    assert about.name == "penstock"
    assert about.license_expression == "Apache-2.0"
    assert about.license_files == ["LICENSE"]
    assert about.requires_python == ">=3.11"
    assert about.description_content_type == "text/markdown"
    assert {Requirement(str(one)).name for one in about.requires_dist or () if not one.marker} == {
        *("msgspec", "click", "rich")
    }


def test_the_description_has_no_links_that_lead_nowhere(archive: Path) -> None:
    """A package index shows it on another site: neither relative links nor pictures work there."""
    text = Metadata.from_email(text_in(archive, "PKG-INFO")).description or ""
    assert text.startswith("# Penstock\n")
    assert "## Why not RocketMQ, Kafka or Redis Streams?" in text
    assert "## Quick start" not in text
    assert re.findall(r"\]\((?!https://)", text) == []


# -- the wheel, where nothing else is ------------------------------------------------------------------------


@dataclass(frozen=True)
class Empty:
    """An environment with what Penstock requires and nothing else; this clone is not on its path."""

    folder: Path

    @property
    def site(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def install(self, file: Path, *options: str, **environment: str) -> str:
        command = [sys.executable, "-m", "pip", "--python", str(self.folder), "install", "--no-index"]
        done = subprocess.run(
            [*command, "--no-deps", "--no-build-isolation", *options, str(file)],
            cwd=self.folder,
            env={**ORDINARY, **environment},
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def run(self, *words: str, text: str = "", nameserver: str = "") -> str:
        done = subprocess.run(
            [self.folder / "bin" / words[0], *words[1:]],
            cwd=self.folder,
            env={**ORDINARY, "PENSTOCK_NAMESERVER": nameserver},
            input=text,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def copy_installed(site: Path, *names: str) -> None:
    """Distributions of this environment, with what they require."""
    waiting, copied = [*names], set()
    while waiting:
        name = waiting.pop()
        if name in copied:
            continue
        copied.add(name)
        found = distribution(name)
        for file in found.files or ():
            target = site / file
            if ".." not in file.parts and file.suffix != ".pyc":
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(Path(str(file.locate())).read_bytes())
        needs = [Requirement(text) for text in found.requires or ()]
        waiting += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]


@pytest.fixture
def empty(tmp_path: Path) -> Empty:
    folder = tmp_path / "empty"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    made = Empty(folder)
    copy_installed(made.site, "msgspec", "click", "rich")
    return made


def try_out(empty: Empty, form: str) -> str:
    """Imports, the command, a node, a message; what the node said on standard error."""
    assert empty.run("penstock", "--version").endswith(f" (hot modules: {form})\n")
    where = empty.run("python", "-c", "import penstock, sys; print(penstock.__file__); print(*sys.path)")
    assert where.splitlines()[0] == str(empty.site / "penstock" / "__init__.py")
    assert str(ROOT) not in where
    environment = {**ORDINARY, "PENSTOCK_BROKER_VIP_LISTENER": "false"}
    with node_process(empty.folder / "bin" / "penstock", empty.folder, environment) as node:
        patient = ("--timeout", "30000")  # on a busy machine
        empty.run("penstock", "produce", "orders", *patient, text="hello\n", nameserver=node.address)
        assert empty.run("penstock", "consume", "orders", *patient, nameserver=node.address) == "hello\n"
    return node.said


def test_an_archive_runs_where_nothing_else_is(archive: Path, empty: Empty) -> None:
    """Uncompiled: compiling takes a minute. Every file of the packages is installed."""
    copy_installed(empty.site, "setuptools")
    empty.install(archive, PENSTOCK_PURE="1")
    files = [name for name in wheels.tracked_files() if name.startswith(("penstock/", "pyspark_penstock/"))]
    assert len(files) > 400
    assert [name for name in files if not (empty.site / name).is_file()] == []
    about = empty.site / f"penstock-{penstock.__version__}.dist-info"
    assert (about / "licenses" / "LICENSE").is_file()
    assert "hot modules are not compiled" in try_out(empty, "pure")


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What `make wheel` makes of the files as they are."""
    if not LONG:
        pytest.skip("long")
    out = tmp_path_factory.mktemp("release")
    subprocess.run(["make", "--silent", ".venv/.stamp-release"], cwd=ROOT, check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", str(TIME))
        assert wheels.main(["--dirty", "--out", str(out)]) == 0
    return sorted(out.iterdir())


@pytest.mark.long(only=True)
def test_the_wheel_of_a_release_runs_compiled(release: list[Path], empty: Empty) -> None:
    (wheel,) = (file for file in release if file.suffix == ".whl")
    tags = {tag.platform for tag in parse_wheel_filename(wheel.name)[3]}
    assert sys.platform != "linux" or any(tag.startswith("manylinux") for tag in tags), tags
    empty.install(wheel)
    assert "not compiled" not in try_out(empty, "compiled")


@pytest.mark.long(only=True)
def test_the_same_archive_gives_the_same_wheel(release: list[Path], tmp_path: Path) -> None:
    wheel, archive = release
    again = wheels.wheel(archive, sys.executable, *build_environment(tmp_path), TIME)
    assert (again.name, again.read_bytes()) == (wheel.name, wheel.read_bytes())


@pytest.mark.long(only=True)
def test_the_archive_installs_without_a_compiler(archive: Path, empty: Empty) -> None:
    copy_installed(empty.site, "setuptools", "cython")
    said = empty.install(archive, "-v", CC="false")
    assert "the hot modules stay uncompiled" in said
    assert "hot modules are not compiled" in try_out(empty, "pure")
