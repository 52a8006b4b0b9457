"""What every test gets: the expected form of the hot modules, no leaks, and a hypothesis profile.

Environment:
    PENSTOCK_EXPECT        compiled | pure: the form that must be loaded, or nothing runs at all.
                           Default: pure if PENSTOCK_PURE=1, else compiled.
    PENSTOCK_HYPOTHESIS    ci (default: the same moderate number of examples each time) | thorough
"""

import gc
import logging
import os
import platform
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from penstock.runtime.disk import DiskUsage, SystemDisk
from penstock.testing.reserved_port import HELD
from penstock.testing.scratch_disk import scratch_parent
from tests import proofs, timing
from tests.disk_limits import NO_DISK_LIMITS
from tests.effort import LONG

PURE_ASKED = os.environ.get("PENSTOCK_PURE") == "1"
EXPECTED_FORM = os.environ.get("PENSTOCK_EXPECT") or ("pure" if PURE_ASKED else "compiled")
# Costs time only where something is left; on a busy machine a thread may take seconds to notice that it is to end.
LEAK_GRACE_S = 10.0
DESCRIPTORS = Path("/proc/self/fd")
MEMORY_ROOM_BYTES = 2 << 30
# The default executor of an event loop adds a thread when more work comes at once than ever before. If the loop is
# that of a server of the module, that is no leak of the test.
EXECUTOR_THREAD = re.compile(r"(?:uvloop|asyncio)_\d+")

# A broker's VIP port is two below its port: below a reserved port, that may be another test's. Tests of it say so.
os.environ.setdefault("PENSTOCK_BROKER_VIP_LISTENER", "false")

# In the background of a shell these are ignored, and so they would be in every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

hypothesis.settings.register_profile(
    "ci",
    derandomize=True,
    max_examples=100,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("thorough", max_examples=5_000, deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("PENSTOCK_HYPOTHESIS") or "ci")


def loaded_form() -> str:
    try:
        import penstock._hot
    except ImportError as error:
        pytest.exit(f"The hot modules cannot be imported: {error}. Run: make setup", returncode=3)
    return penstock._hot.form()


def pytest_configure(config: pytest.Config) -> None:
    """A suite that silently ran the other form would prove nothing, so the run ends before its first test."""
    if EXPECTED_FORM not in ("compiled", "pure"):
        pytest.exit(f"PENSTOCK_EXPECT is 'compiled' or 'pure', not {EXPECTED_FORM!r}", returncode=3)
    form = loaded_form()
    if form != EXPECTED_FORM:
        if EXPECTED_FORM == "pure":
            advice = "Set PENSTOCK_PURE=1 as well."
        elif PURE_ASKED:
            advice = "PENSTOCK_PURE=1 is set: unset it."
        else:
            advice = "Compile them with: make setup (it says what is missing)."
        pytest.exit(
            f"The hot modules are loaded in their {form} form, expected was {EXPECTED_FORM}. {advice}\n"
            "To run the uncompiled form on purpose: make test-pure",
            returncode=3,
        )
    proofs.register(config, pure=form == "pure")
    timing.register(config, keeps=form == "compiled")
    _keep_files_in_memory()


def _keep_files_in_memory() -> None:
    """Temporary directories of tests are in memory, where there is room and TMPDIR does not say otherwise.

    The same system calls are made, and a sync there is free: hundreds of stores that are killed, torn and opened
    again would wait for this machine's disk most of the time. `FaultyDisk` says what a disk may lose.
    """
    parent = scratch_parent()
    if parent is not None and SystemDisk().usage(parent).available >= MEMORY_ROOM_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(parent))


@pytest.fixture(scope="session", autouse=True)
def first_uvloop() -> None:
    """libuv makes a pipe for signals with its first loop and keeps it for good: no test's leak, so made here."""
    try:
        import uvloop
    except ImportError:
        return
    uvloop.new_event_loop().close()


@pytest.fixture(scope="session", autouse=True)
def fork_server() -> None:
    """The server that processes are forked off begins before the first test, if any test may need it."""
    forked_process = sys.modules.get("tests.support.forked_process")
    if forked_process is not None:
        forked_process.begin()


@pytest.fixture(scope="session", autouse=True)
def roomy_disk() -> Iterator[None]:
    """No test depends on how full this machine's disk is.

    A store deletes segments and refuses writes when the disk is nearly full. Here the real disk reports at most half
    of its space as used, and servers that tests start get limits of 100 percent. A test about a full disk brings its
    own (`FaultyDisk.usage_override`).
    """
    real = SystemDisk.usage

    def usage(disk: SystemDisk, path: Path) -> DiskUsage:
        found = real(disk, path)
        return DiskUsage(
            found.total, min(found.used, found.total // 2), max(found.available, found.total // 2)
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SystemDisk, "usage", usage)
        for name, percent in NO_DISK_LIMITS.items():
            patch.setenv(f"PENSTOCK_STORE_{name.upper()}", str(percent))
        yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that have a long variant only are left to `make soak` and the slices."""
    if LONG:
        return
    only_long = [item for item in items if any(mark.kwargs.get("only") for mark in item.iter_markers("long"))]
    if only_long:
        config.hook.pytest_deselected(items=only_long)
        items[:] = [item for item in items if item not in only_long]


def pytest_report_header(config: pytest.Config) -> str:
    return (
        f"penstock: hot modules {loaded_form()}, {platform.python_implementation()} "
        f"{platform.python_version()}, {platform.platform()}, hypothesis profile "
        f"{os.environ.get('PENSTOCK_HYPOTHESIS') or 'ci'}"
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Interop tests that were skipped (no Java, Maven repository out of reach) must not look like a pass."""
    reasons: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        if report.nodeid.startswith("tests/interop/") and isinstance(report.longrepr, tuple):
            reason = str(report.longrepr[2]).removeprefix("Skipped: ")
            reasons[reason] = reasons.get(reason, 0) + 1
    if reasons:
        terminalreporter.section("INTEROP TESTS DID NOT RUN", sep="!", red=True, bold=True)
        for reason, count in sorted(reasons.items()):
            terminalreporter.write_line(f"!!  {count} skipped: {reason}", red=True)
        terminalreporter.write_line("!" * 80, red=True)


def open_descriptors() -> dict[int, str]:
    """Descriptors of this process with what they lead to. Empty where there is no /proc."""
    found: dict[int, str] = {}
    if not DESCRIPTORS.is_dir():
        return found
    for name in os.listdir(DESCRIPTORS):
        try:
            found[int(name)] = os.readlink(DESCRIPTORS / name)
        except FileNotFoundError:
            continue  # The descriptor of this very listing.
    return found


def socket_ends(target: str) -> tuple[str, int, int, int] | None:
    """Table, local port, remote port and state of a TCP socket, as the kernel has them: that tells whose it is."""
    inode = target.removeprefix("socket:[").removesuffix("]")
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[9] == inode:
                local, remote = (int(end.rpartition(":")[2], 16) for end in words[1:3])
                return table, local, remote, int(words[3], 16)
    return None


def spark_ports() -> set[int]:
    """Where Spark's driver and its JVM talk to each other. They connect anew when one of them drops what the other
    holds for it, which garbage collection does in tests that have nothing to do with Spark."""
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    gateway = context._gateway if context is not None else None
    if gateway is None:
        return set()
    callbacks = gateway.get_callback_server()
    listening = [callbacks.get_listening_port()] if callbacks is not None else []
    return {gateway.gateway_parameters.port, *listening}


def open_resources() -> tuple[set[threading.Thread], set[tuple[int, str]]]:
    return set(threading.enumerate()), set(open_descriptors().items())


def new_since(before: tuple[set[threading.Thread], set[tuple[int, str]]]) -> list[str]:
    threads, descriptors = (now - then for now, then in zip(open_resources(), before, strict=True))
    pools = {thread.name.rpartition("_")[0] for thread in before[0] if EXECUTOR_THREAD.fullmatch(thread.name)}
    found = [
        f"thread {thread.name!r}"
        for thread in threads
        if thread.is_alive()
        and not (EXECUTOR_THREAD.fullmatch(thread.name) and thread.name.rpartition("_")[0] in pools)
    ]
    for number, target in sorted(descriptors):
        if number in HELD:
            continue
        ends = socket_ends(target) if target.startswith("socket:") else None
        if ends is None:
            found.append(f"descriptor {number} -> {target}")
        elif spark_ports().isdisjoint(ends[1:3]):
            table, local, remote, state = ends
            found.append(f"descriptor {number} -> {table} socket, port {local} to {remote}, state {state}")
    return found


def fail_on_leaks(where: str, before: tuple[set[threading.Thread], set[tuple[int, str]]]) -> None:
    """Whatever ends by itself within the grace is no leak; garbage is collected before it is judged."""
    deadline = time.monotonic() + LEAK_GRACE_S
    while leaked := new_since(before):
        if time.monotonic() > deadline:
            pytest.fail(f"{where} left behind: {'; '.join(leaked)}. Close what it opens.", pytrace=False)
        gc.collect()
        time.sleep(0.01)


@pytest.fixture(scope="module", autouse=True)
def no_leaks_from_module(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the fixtures of a module open, they close. Wraps them, because it is set up before them."""
    before = open_resources()
    yield
    if not request.node.get_closest_marker("leak_exempt"):
        fail_on_leaks(f"the module {request.node.name}", before)


@pytest.fixture(autouse=True)
def no_leaks_from_test(request: pytest.FixtureRequest) -> Iterator[None]:
    before = open_resources()
    yield
    if not request.node.get_closest_marker("leak_exempt"):
        fail_on_leaks("the test", before)


@pytest.fixture
def hot_form() -> str:
    """The form under test, for the few tests that differ."""
    return sys.modules["penstock._hot"].form()


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A command that was run in this process has its logs on standard error alone; the next test finds them again."""
    loggers = [logging.getLogger(name) for name in ("penstock", "asyncio")]
    before = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)
