"""Apache RocketMQ's own store classes, driven from tests.

Purpose: write, read, query and lock a store directory with the real `DefaultMessageStore` of a RocketMQ
release, so that `make interop` compares Penstock with the original and not with our reading of it. The Java
side is `StoreTool` in `java/`; each call here runs one JVM and parses its JSON lines.

Rule: an answer is returned only if the JVM ended as asked (0, or the halt code after `halt=True`). Everything
else is an exception that quotes the end of Java's standard error; a refusal by the store has its own class.

Ownership: calls block the calling thread. `prepare` may run in several processes at once: a file lock lets
one of them resolve and compile, the others reuse the result.

Never: reads or writes a store's files itself, or lets the JVM listen beyond loopback.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import ipaddress
import json
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

VERSIONS: tuple[str, ...] = ("5.3.3", "4.9.8")
"""The pinned releases: the newest complete 5.3.x and the newest 4.9.x. The POMs name the same versions."""

_JAVA_DIR = Path(__file__).resolve().parent / "java"
_CACHE_DIR = Path(__file__).resolve().parents[2] / ".cache" / "interop"
_JAVA_MAJOR_MIN = 17
_HALT_CODE = 9
_RESOLVE_TIMEOUT_S = 900
_COMPILE_TIMEOUT_S = 300
# The 4.9 line unmaps its files through internals that Java 17 closes by default.
_JVM_OPTIONS = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
)
_OUT_OF_REACH = re.compile(
    r"Could not transfer|Unknown host|Connection (?:refused|reset|timed out)|Network is unreachable|"
    r"No route to host|connect timed out|Read timed out|in offline mode"
)


class JavaStoreError(Exception):
    """A Java tool failed or answered something unexpected; the message ends with what it said."""


class JavaStoreRefused(JavaStoreError):
    """`load()` returned false: RocketMQ does not accept the directory."""


class JavaStoreLocked(JavaStoreError):
    """Another process holds the directory's lock; nothing in the directory was touched."""


class JavaStoreUnclean(JavaStoreError):
    """`shutdown()` kept the abort file: the store does not consider its stop clean."""


class RegistryOutOfReach(JavaStoreError):
    """Maven could not fetch the release: a fault of the network, not of the project."""


_ERROR_BY_EXIT_CODE: dict[int, type[JavaStoreError]] = {
    3: JavaStoreRefused,
    4: JavaStoreLocked,
    5: JavaStoreUnclean,
}


@dataclass(frozen=True, slots=True)
class StoreSizes:
    """File sizes, small by default so that a few hundred messages roll several files. A reader must be told
    the same sizes as the writer."""

    segment_bytes: int = 1 << 20
    queue_entries: int = 1000
    index_slots: int = 500
    index_entries: int = 2000

    def arguments(self) -> list[str]:
        return [
            *("--segment-bytes", str(self.segment_bytes)),
            *("--queue-entries", str(self.queue_entries)),
            *("--index-slots", str(self.index_slots)),
            *("--index-entries", str(self.index_entries)),
        ]


SMALL_SIZES = StoreSizes()


@dataclass(frozen=True, slots=True)
class MessageSpec:
    """A message to be put. Hosts are `1.2.3.4:5` or `[::1]:5`."""

    topic: str
    queue_id: int = 0
    body: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 1_700_000_000_000
    born_host: str = "127.0.0.1:40000"
    store_host: str = "127.0.0.1:10911"
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """Messages put in one call. Topic, queue, system flag, hosts and times of the first hold for all."""

    messages: tuple[MessageSpec, ...]


@dataclass(frozen=True, slots=True)
class PutResult:
    """What the store answered to one put. Offsets are -1 where nothing was appended."""

    status: str
    queue_offset: int
    physical_offset: int
    size_bytes: int
    message_ids: tuple[str, ...]
    message_count: int
    store_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class WriteResult:
    puts: tuple[PutResult, ...]
    min_physical_offset: int
    max_physical_offset: int


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A record as RocketMQ decoded it; the body is as stored (compressed bodies stay compressed)."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size_bytes: int
    body_crc: int
    body: bytes
    properties: dict[str, str]
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: str
    store_timestamp_ms: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    message_id: str


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message reached through a consume queue: the offset asked for, the entry found there, the record."""

    logical_offset: int
    entry_physical_offset: int
    entry_size_bytes: int
    tags_code: int
    record: StoredMessage


@dataclass(frozen=True, slots=True)
class QueueRange:
    topic: str
    queue_id: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class QueueGap:
    """A logical offset inside a queue's range at which the store did not return a readable message."""

    topic: str
    queue_id: int
    logical_offset: int
    status: str


@dataclass(frozen=True, slots=True)
class ReadResult:
    messages: tuple[QueuedMessage, ...]
    queues: tuple[QueueRange, ...]
    gaps: tuple[QueueGap, ...]
    min_physical_offset: int
    max_physical_offset: int


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
        timeout_s: float = 120,
    ) -> WriteResult:
        """Puts every spec in order. `halt` ends the JVM without any shutdown, as a crash would."""
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".jsonl") as spec_file:
            for spec in specs:
                spec_file.write(json.dumps(_spec_json(spec)) + "\n")
            spec_file.flush()
            switches = [*(["--sync"] if sync_flush else []), *(["--halt"] if halt else [])]
            arguments = ["write", str(directory), spec_file.name, *switches, *sizes.arguments()]
            lines = self._run(arguments, _HALT_CODE if halt else 0, timeout_s)
        offsets = lines.pop()
        puts = tuple(_put_result(line) for line in lines)
        return WriteResult(puts, offsets["minPhyOffset"], offsets["maxPhyOffset"])

    def read(self, directory: Path, *, sizes: StoreSizes = SMALL_SIZES, timeout_s: float = 120) -> ReadResult:
        """Recovers and starts the store, reads every queue from min to max offset, stops cleanly."""
        lines = self._run(["read", str(directory), *sizes.arguments()], 0, timeout_s)
        offsets = lines.pop()
        return ReadResult(
            tuple(_queued_message(line["message"]) for line in lines if "message" in line),
            tuple(_queue_range(line["queue"]) for line in lines if "queue" in line),
            tuple(_queue_gap(line["gap"]) for line in lines if "gap" in line),
            offsets["minPhyOffset"],
            offsets["maxPhyOffset"],
        )

    def query(
        self,
        directory: Path,
        topic: str,
        key: str,
        *,
        sizes: StoreSizes = SMALL_SIZES,
        timeout_s: float = 120,
    ) -> tuple[StoredMessage, ...]:
        """The records that RocketMQ finds by key, at most 64, by commit log position. It compares hashes
        only, so a record with another key may be among them."""
        lines = self._run(["query", str(directory), topic, key, *sizes.arguments()], 0, timeout_s)
        return tuple(_stored_message(line["hit"]) for line in lines)

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
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            return f"no {tool} on the path: install a JDK {_JAVA_MAJOR_MIN} or newer and Maven"
    major = _java_major()
    if major < _JAVA_MAJOR_MIN:
        return f"java is version {major}: install a JDK {_JAVA_MAJOR_MIN} or newer"
    try:
        for version in VERSIONS:
            prepare(version)
    except RegistryOutOfReach as unreachable:
        return str(unreachable)
    return None


def prepare(version: str) -> JavaStore:
    """Resolves the release and compiles StoreTool into the cache, or reuses what is there and up to date."""
    if version not in VERSIONS:
        raise ValueError(f"{version} is not pinned; choose one of {', '.join(VERSIONS)}")
    home = _CACHE_DIR / version
    home.mkdir(parents=True, exist_ok=True)
    # The cache keeps itself out of version control, whatever the repository ignores.
    (_CACHE_DIR / ".gitignore").write_text("*\n", encoding="utf-8")
    release_dir = _JAVA_DIR / f"rocketmq-{version.rpartition('.')[0]}"
    with open(home / "prepare.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _resolve(home, release_dir / "pom.xml")
        _compile(home, release_dir)
    return JavaStore(version, home)


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


def _compile(home: Path, release_dir: Path) -> None:
    sources = sorted([*_JAVA_DIR.glob("common/src/**/*.java"), *release_dir.glob("src/**/*.java")])
    resources = release_dir / "resources"
    inputs = [*sources, *sorted(path for path in resources.rglob("*") if path.is_file()), home / "lib.stamp"]
    classes, stamp = home / "classes", home / "classes.stamp"
    if _is_current(stamp, inputs, classes):
        return
    fresh = _empty_directory(home / "classes.new")
    log_path = home / "javac.log"
    command = ["javac", "-proc:none", "-encoding", "UTF-8", "-cp", f"{home / 'lib'}/*", "-d", str(fresh)]
    with open(log_path, "wb") as log:
        code = _run_group([*command, *map(str, sources)], log, _COMPILE_TIMEOUT_S)
    if code != 0:
        raise JavaStoreError(f"javac ended with {code}:\n{log_path.read_text(errors='replace')[-4000:]}")
    if resources.is_dir():
        shutil.copytree(resources, fresh, dirs_exist_ok=True)
    _replace(fresh, classes)
    _write_stamp(stamp, inputs, classes)


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


def _spec_json(spec: MessageSpec | BatchSpec) -> dict[str, Any]:
    if isinstance(spec, BatchSpec):
        return {"batch": [_spec_json(message) for message in spec.messages]}
    return {
        "topic": spec.topic,
        "queueId": spec.queue_id,
        "bodyBase64": base64.b64encode(spec.body).decode("ascii"),
        "properties": dict(spec.properties),
        "flag": spec.flag,
        "sysFlag": spec.sys_flag,
        "bornTimestamp": spec.born_timestamp_ms,
        "bornHost": spec.born_host,
        "storeHost": spec.store_host,
        "reconsumeTimes": spec.reconsume_times,
        "preparedTransactionOffset": spec.prepared_transaction_offset,
    }


def _put_result(line: dict[str, Any]) -> PutResult:
    message_ids = line.get("msgId")
    return PutResult(
        status=line["status"],
        queue_offset=line.get("queueOffset", -1),
        physical_offset=line.get("wroteOffset", -1),
        size_bytes=line.get("wroteBytes", 0),
        message_ids=tuple(message_ids.split(",")) if message_ids else (),
        message_count=line.get("msgNum", 0),
        store_timestamp_ms=line.get("storeTimestamp", 0),
    )


def _stored_message(line: dict[str, Any]) -> StoredMessage:
    return StoredMessage(
        topic=line["topic"],
        queue_id=line["queueId"],
        queue_offset=line["queueOffset"],
        physical_offset=line["physicalOffset"],
        size_bytes=line["storeSize"],
        body_crc=line["bodyCrc"],
        body=base64.b64decode(line["bodyBase64"]),
        properties=line["properties"],
        flag=line["flag"],
        sys_flag=line["sysFlag"],
        born_timestamp_ms=line["bornTimestamp"],
        born_host=_short_host(line["bornHost"]),
        store_timestamp_ms=line["storeTimestamp"],
        store_host=_short_host(line["storeHost"]),
        reconsume_times=line["reconsumeTimes"],
        prepared_transaction_offset=line["preparedTransactionOffset"],
        message_id=line["msgId"],
    )


def _queued_message(line: dict[str, Any]) -> QueuedMessage:
    return QueuedMessage(
        logical_offset=line["logicalOffset"],
        entry_physical_offset=line["unitPhysicalOffset"],
        entry_size_bytes=line["unitSize"],
        tags_code=line["tagsCode"],
        record=_stored_message(line),
    )


def _queue_range(line: dict[str, Any]) -> QueueRange:
    return QueueRange(line["topic"], line["queueId"], line["minOffset"], line["maxOffset"])


def _queue_gap(line: dict[str, Any]) -> QueueGap:
    return QueueGap(line["topic"], line["queueId"], line["logicalOffset"], line["status"])


def _short_host(text: str) -> str:
    """Java prints IPv6 addresses in full; specs and Python use the short form."""
    address, _, port = text.rpartition(":")
    if not address.startswith("["):
        return text
    return f"[{ipaddress.ip_address(address[1:-1])}]:{port}"
