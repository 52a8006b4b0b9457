"""Pinned RocketMQ releases on this machine: resolved by Maven, our Java sources compiled against them, both cached.

Rule: what is in the cache is used only if it is complete and was made from the same sources; otherwise it is
made anew. A network out of reach is told apart from every other failure, because only the first may skip tests.

Ownership: calls block the calling thread. `prepare_build` may run in several processes at once: a file lock
lets one of them resolve and compile, the others reuse the result.

Never: runs what it compiled, or leaves a half-made cache under its final name.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.interop.java_errors import JavaStoreError, RegistryOutOfReach

VERSIONS: tuple[str, ...] = ("5.3.3", "4.9.8")
"""The pinned releases: the newest complete 5.3.x and the newest 4.9.x. The POMs name the same versions."""


@dataclass(frozen=True, slots=True)
class JavaBuild:
    """What is compiled against what. All names are of folders (or files) in `java/`."""

    name: str
    """The directory in the cache."""

    pom: str
    """The folder whose POM names the releases to resolve."""

    sources: tuple[str, ...]
    """Folders with a `src/`, or single files; none where the JARs are all that is wanted."""

    resources: str = ""
    """The folder whose `resources/` go beside the classes."""


_JAVA_DIR = Path(__file__).resolve().parent / "java"
CACHE_DIR = Path(__file__).resolve().parents[2] / ".cache" / "interop"
_JAVA_MAJOR_MIN = 17
_RESOLVE_TIMEOUT_S = 900
_COMPILE_TIMEOUT_S = 300
_OUT_OF_REACH = re.compile(
    r"Could not transfer|Unknown host|Connection (?:refused|reset|timed out)|Network is unreachable|"
    r"No route to host|connect timed out|Read timed out|in offline mode"
)


def missing_tools() -> str | None:
    """None if Java and Maven are here, else what is missing and what to do."""
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            return f"no {tool} on the path: install a JDK {_JAVA_MAJOR_MIN} or newer and Maven"
    major = _java_major()
    if major < _JAVA_MAJOR_MIN:
        return f"java is version {major}: install a JDK {_JAVA_MAJOR_MIN} or newer"
    return None


def prepare_home(version: str) -> Path:
    """The store classes of a release and StoreTool: a directory with `lib/` and `classes/`, up to date."""
    if version not in VERSIONS:
        raise ValueError(f"{version} is not pinned; choose one of {', '.join(VERSIONS)}")
    release = f"rocketmq-{version.rpartition('.')[0]}"
    return prepare_build(JavaBuild(version, release, ("common", release), resources=release))


def prepare_build(build: JavaBuild) -> Path:
    """The build's directory in the cache, with `lib/` and `classes/` present and up to date."""
    home = CACHE_DIR / build.name
    home.mkdir(parents=True, exist_ok=True)
    # The cache keeps itself out of version control, whatever the repository ignores.
    (CACHE_DIR / ".gitignore").write_text("*\n", encoding="utf-8")
    # One lock for all builds: Maven's own repository is theirs together, and not made for two at once.
    with open(CACHE_DIR / "prepare.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _resolve(home, _JAVA_DIR / build.pom / "pom.xml")
        _compile(home, build)
    return home


def _resolve(home: Path, pom: Path) -> None:
    lib, stamp = home / "lib", home / "lib.stamp"
    if _is_current(stamp, [pom], lib):
        return
    fresh = _empty_directory(home / "lib.new")
    log_path = home / "maven.log"
    # Strict checksums (-C): a damaged JAR must not become a riddle in a test.
    goal = "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"
    command = ["mvn", "-B", "-ntp", "-C", "-U", "-f", str(pom), goal]
    options = ["-DincludeScope=runtime", f"-DoutputDirectory={fresh}"]
    with open(log_path, "wb") as log:
        code = _run_group([*command, *options], log, _RESOLVE_TIMEOUT_S)
    text = log_path.read_text(encoding="utf-8", errors="replace")
    if code != 0:
        first = next((line for line in text.splitlines() if "ERROR" in line), "no error line")
        if _OUT_OF_REACH.search(text):
            raise RegistryOutOfReach(f"Maven cannot reach its repository, connect and try again: {first}")
        raise JavaStoreError(f"mvn ended with {code}, see {log_path}: {first}")
    _replace(fresh, lib)
    _write_stamp(stamp, [pom], lib)


def _compile(home: Path, build: JavaBuild) -> None:
    sources = sorted(path for pattern in build.sources for path in _sources(pattern))
    resources = _JAVA_DIR / (build.resources or "none") / "resources"
    inputs = [*sources, *sorted(path for path in resources.rglob("*") if path.is_file()), home / "lib.stamp"]
    classes, stamp = home / "classes", home / "classes.stamp"
    if _is_current(stamp, inputs, classes):
        return
    fresh = _empty_directory(home / "classes.new")
    log_path = home / "javac.log"
    command = ["javac", "-proc:none", "-encoding", "UTF-8", "-cp", f"{home / 'lib'}/*", "-d", str(fresh)]
    with open(log_path, "wb") as log:
        code = _run_group([*command, *map(str, sources)], log, _COMPILE_TIMEOUT_S) if sources else 0
    if code != 0:
        raise JavaStoreError(f"javac ended with {code}:\n{log_path.read_text(errors='replace')[-4000:]}")
    if resources.is_dir():
        shutil.copytree(resources, fresh, dirs_exist_ok=True)
    _replace(fresh, classes)
    _write_stamp(stamp, inputs, classes)


def _sources(name: str) -> Iterable[Path]:
    """All sources of a folder, or the one that is named with its path."""
    path = _JAVA_DIR / name
    return [path] if path.suffix == ".java" else path.glob("src/**/*.java")


def _is_current(stamp: Path, inputs: Iterable[Path], output: Path) -> bool:
    return output.is_dir() and stamp.is_file() and stamp.read_text() == _fingerprint(inputs, output)


def _write_stamp(stamp: Path, inputs: Iterable[Path], output: Path) -> None:
    stamp.write_text(_fingerprint(inputs, output))


def _fingerprint(inputs: Iterable[Path], output: Path) -> str:
    """Contents of what went in, names and sizes of what came out: an incomplete cache is not up to date."""
    digest = hashlib.sha256()
    for path in inputs:
        digest.update(f"{path.name}\0".encode() + path.read_bytes())
    for path in sorted(output.rglob("*")):
        size = path.stat().st_size if path.is_file() else 0
        digest.update(f"{path.relative_to(output)}\0{size}\0".encode())
    return digest.hexdigest()


def _empty_directory(path: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    return path


def _replace(fresh: Path, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    fresh.rename(path)


def _run_group(command: Sequence[str], log: IO[bytes], timeout_s: float) -> int:
    """Runs a tool that starts children (mvn is a script around a JVM); on timeout the whole group ends."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired as expired:
        raise JavaStoreError(f"{command[0]} did not end in {timeout_s} s, see {log.name}") from expired
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _java_major() -> int:
    done = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False, timeout=60)
    found = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if found is None:
        return 0
    # Up to Java 8 the major version was the second number.
    return int(found[2] or 0) if found[1] == "1" else int(found[1])
