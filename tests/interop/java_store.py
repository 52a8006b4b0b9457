"""Apache RocketMQ's own store classes, driven from tests.

Purpose: write, read, query and lock a store directory with the real `DefaultMessageStore` of a RocketMQ
release, so that `make interop` compares Penstock with the original and not with our reading of it. The Java
side is `StoreTool` in `java/`; each call here runs one JVM and parses its JSON lines.

Rule: an answer is returned only if the JVM ended as asked (0, or the halt code after `halt=True`). Everything
else is an exception that quotes the end of Java's standard error; a refusal by the store has its own class.

Ownership: calls block the calling thread. `java_release.py` has the releases, `java_messages.py` the values.

Never: reads or writes a store's files itself, or lets the JVM listen beyond loopback.
"""

from __future__ import annotations

import contextlib
import json
import select
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.interop.java_errors import (
    JavaStoreError,
    JavaStoreLocked,
    JavaStoreRefused,
    JavaStoreUnclean,
    RegistryOutOfReach,
)
from tests.interop.java_messages import (
    SMALL_SIZES,
    BatchSpec,
    MessageSpec,
    ReadResult,
    StoreSizes,
    TimeQuestion,
    WriteResult,
    put_result,
    read_result,
    spec_json,
)
from tests.interop.java_release import VERSIONS, missing_tools, prepare_home

_HALT_CODE = 9
# The 4.9 line unmaps its files through internals that Java 17 closes by default.
_JVM_OPTIONS = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
)
_ERROR_BY_EXIT_CODE: dict[int, type[JavaStoreError]] = {
    3: JavaStoreRefused,
    4: JavaStoreLocked,
    5: JavaStoreUnclean,
}


@dataclass(slots=True)
class HeldLock:
    """A running store that owns the directory."""

    pid: int
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """Ends the JVM by SIGKILL: a crash, the abort file stays."""
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True, slots=True)
class JavaStore:
    """One prepared RocketMQ release."""

    version: str
    home: Path

    def write(
        self,
        directory: Path,
        specs: Iterable[MessageSpec | BatchSpec],
        *,
        sizes: StoreSizes = SMALL_SIZES,
        sync_flush: bool = False,
        halt: bool = False,
        seal: bool = False,
        timeout_s: float = 120,
    ) -> WriteResult:
        """Puts every spec in order. `halt` ends the JVM without any shutdown, as a crash would."""
        with _lines_file(spec_json(spec) for spec in specs) as path:
            switches = [*(["--sync"] if sync_flush else []), *(["--halt"] if halt else [])]
            switches += ["--seal"] if seal else []
            arguments = ["write", str(directory), path, *switches, *sizes.arguments()]
            lines = self._run(arguments, _HALT_CODE if halt else 0, timeout_s)
        offsets = lines.pop()
        puts = tuple(put_result(line) for line in lines)
        return WriteResult(puts, offsets["minPhyOffset"], offsets["maxPhyOffset"])

    def read(
        self,
        directory: Path,
        *,
        queries: Iterable[tuple[str, str]] = (),
        positions: Iterable[int] = (),
        times: Iterable[TimeQuestion] = (),
        sizes: StoreSizes = SMALL_SIZES,
        check_seals: bool = False,
        halt: bool = False,
        timeout_s: float = 120,
    ) -> ReadResult:
        """Recovers and starts the store, reads every queue from min to max offset, answers questions by (topic,
        key), by log position and by time (5 line only), stops cleanly.

        `halt` saves the seconds that a stop takes, on a directory that nobody needs afterwards.
        """
        questions: list[dict[str, object]] = [{"topic": topic, "key": key} for topic, key in queries]
        questions += [{"position": position} for position in positions]
        questions += [
            {"topic": time.topic, "queueId": time.queue_id, "time": time.time_ms, "boundary": time.boundary}
            for time in times
        ]
        with _lines_file(questions) as path:
            switches = [*(["--check-seals"] if check_seals else []), *(["--halt"] if halt else [])]
            arguments = ["read", str(directory), path, *switches, *sizes.arguments()]
            lines = self._run(arguments, _HALT_CODE if halt else 0, timeout_s)
        return read_result(lines)

    def rewrite_config(self, source: Path, target: Path, *, timeout_s: float = 60) -> tuple[str, ...]:
        """Has RocketMQ's classes read the config files in `source` and write them to `target`; the names of
        those that this release has a class for."""
        self._run(["config", str(source), str(target)], 0, timeout_s)
        return tuple(sorted(path.name for path in target.iterdir()))

    def lock_test(
        self,
        directory: Path,
        *,
        sizes: StoreSizes = SMALL_SIZES,
        load_first: bool = False,
        timeout_s: float = 60,
    ) -> bool:
        """Whether `start()` gets the directory's lock (and gives it back by a clean stop). A directory held
        by another process is not touched, unless `load_first`: then recovery runs before the lock is tried,
        which is what a broker does."""
        switches = ["--load"] if load_first else []
        lines = self._run(["locktest", str(directory), *switches, *sizes.arguments()], 0, timeout_s)
        return bool(lines[0]["locked"])

    @contextlib.contextmanager
    def hold_lock(
        self, directory: Path, *, seconds: int = 60, sizes: StoreSizes = SMALL_SIZES, timeout_s: float = 60
    ) -> Iterator[HeldLock]:
        """A started store that keeps the lock until the block ends (clean stop) or `seconds` have passed."""
        command = self._command(["holdlock", str(directory), str(seconds), *sizes.arguments()])
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
            try:
                ready = _first_line(process, timeout_s)
                if ready is None:
                    process.kill()
                    raise _failure("holdlock", process.wait(), errors)
                yield HeldLock(int(ready["pid"]), process)
                if process.poll() == -signal.SIGKILL:
                    return
                assert process.stdin is not None
                process.stdin.close()
                if process.wait(timeout_s) != 0:
                    raise _failure("holdlock", process.returncode, errors)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
                for pipe in (process.stdin, process.stdout):
                    if pipe is not None:
                        pipe.close()

    def _command(self, arguments: Sequence[str]) -> list[str]:
        class_path = f"{self.home / 'classes'}:{self.home / 'lib'}/*"
        # A user home of our own: the store would put its logs and stack dumps there.
        options = [*_JVM_OPTIONS, f"-Duser.home={self.home / 'home'}"]
        return ["java", *options, "-cp", class_path, "penstock.interop.StoreTool", *arguments]

    def _run(self, arguments: Sequence[str], exit_code: int, timeout_s: float) -> list[dict[str, Any]]:
        with tempfile.TemporaryFile() as errors:
            try:
                done = subprocess.run(
                    self._command(arguments),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    timeout=timeout_s,
                    check=False,
                )
            except subprocess.TimeoutExpired as expired:
                raise JavaStoreError(
                    f"StoreTool {arguments[0]} did not end in {timeout_s} s\n{_tail(errors)}"
                ) from expired
            if done.returncode != exit_code:
                raise _failure(arguments[0], done.returncode, errors)
        return [json.loads(line) for line in done.stdout.decode("utf-8").splitlines()]


def available() -> str | None:
    """None if the releases in VERSIONS can be used here, else why not and what to do. Fetches them if need
    be: only a network out of reach counts as unavailable, any other failure of Maven is raised."""
    missing = missing_tools()
    if missing is not None:
        return missing
    try:
        for version in VERSIONS:
            prepare(version)
    except RegistryOutOfReach as unreachable:
        return str(unreachable)
    return None


def prepare(version: str) -> JavaStore:
    """Resolves the release and compiles StoreTool into the cache, or reuses what is there and up to date."""
    return JavaStore(version, prepare_home(version))


@contextlib.contextmanager
def _lines_file(lines: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Path of a file with one JSON value per line, there as long as the block lasts."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".jsonl") as file:
        for line in lines:
            file.write(json.dumps(line) + "\n")
        file.flush()
        yield file.name


def _first_line(process: subprocess.Popen[bytes], timeout_s: float) -> dict[str, Any] | None:
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], timeout_s)
    line = process.stdout.readline() if readable else b""
    return dict(json.loads(line)) if line else None


def _failure(command: str, exit_code: int, errors: IO[bytes]) -> JavaStoreError:
    kind = _ERROR_BY_EXIT_CODE.get(exit_code, JavaStoreError)
    return kind(f"StoreTool {command} ended with {exit_code}; Java said:\n{_tail(errors)}")


def _tail(errors: IO[bytes], line_count: int = 40) -> str:
    errors.seek(0)
    lines = errors.read().decode("utf-8", errors="replace").splitlines()
    return "\n".join(lines[-line_count:]) or "(nothing)"
