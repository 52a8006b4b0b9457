"""Stores that one side wrote, shared by all tests of a session: each JVM costs seconds.

Rule: a shared directory is never opened for writing; a test that writes or lets Java open it takes a copy.
Without Java, or with Maven's repository out of reach, every test that needs it is skipped with the reason.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

# Before the import: its assertions shall say what they compared.
pytest.register_assert_rewrite("tests.interop.penstock_side")

from tests.interop import java_store, penstock_side  # noqa: E402
from tests.interop.java_messages import ReadResult, StoredMessage  # noqa: E402
from tests.interop.java_release import VERSIONS  # noqa: E402
from tests.interop.java_store import JavaStore  # noqa: E402
from tests.interop.workload import expected_of_java, in_queues, queries, workload  # noqa: E402

CopyStore = Callable[[Path], Path]


@dataclass(frozen=True, slots=True)
class WrittenStore:
    """A directory, what its writer was told about each record, and what Java reads in a copy of it."""

    directory: Path
    records: list[StoredMessage]
    java: ReadResult
    is_clean: bool
    has_version_2: bool


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.interop)
            item.add_marker(pytest.mark.java)


@pytest.fixture(scope="session")
def _why_not() -> str | None:
    return java_store.available()


@pytest.fixture(scope="session", params=VERSIONS)
def java(request: pytest.FixtureRequest, _why_not: str | None) -> JavaStore:
    """The store classes of one RocketMQ release."""
    if _why_not is not None:
        pytest.skip(_why_not)
    return java_store.prepare(request.param)


@pytest.fixture(scope="session")
def reads_version_2(java: JavaStore) -> bool:
    """Records of version 2 (topics over 127 bytes) came with the 5 line."""
    return not java.version.startswith("4.")


@pytest.fixture(scope="session")
def copy_store(tmp_path_factory: pytest.TempPathFactory) -> CopyStore:
    def copy(directory: Path) -> Path:
        target = tmp_path_factory.mktemp("copy") / "store"
        shutil.copytree(directory, target)
        return target

    return copy


def _read_by_java(
    java: JavaStore, directory: Path, records: list[StoredMessage], with_version_2: bool
) -> ReadResult:
    outside_queues = {r.physical_offset for r in records} - {
        r.physical_offset for queue in in_queues(records).values() for r in queue
    }
    return java.read(
        directory,
        queries=queries(with_version_2=with_version_2),
        # Half and rolled-back messages are in no queue; a part of the others shows that positions work.
        positions=[*outside_queues, *(record.physical_offset for record in records[::25])],
    )


@pytest.fixture(scope="session", params=["clean", "halted"])
def java_written(
    request: pytest.FixtureRequest,
    java: JavaStore,
    reads_version_2: bool,
    tmp_path_factory: pytest.TempPathFactory,
    copy_store: CopyStore,
) -> WrittenStore:
    """Written by Java, stopped cleanly or by a halt of the JVM right after the last put."""
    directory = tmp_path_factory.mktemp(f"java-{request.param}") / "store"
    specs = workload(with_version_2=reads_version_2)
    written = java.write(directory, specs, halt=request.param == "halted")
    assert {put.status for put in written.puts} == {"PUT_OK"}
    records = expected_of_java(specs, written.puts)
    read = _read_by_java(java, copy_store(directory), records, reads_version_2)
    return WrittenStore(directory, records, read, request.param == "clean", reads_version_2)


@pytest.fixture(scope="session")
def penstock_written(
    java: JavaStore,
    reads_version_2: bool,
    tmp_path_factory: pytest.TempPathFactory,
    copy_store: CopyStore,
) -> WrittenStore:
    """Written by Penstock and stopped cleanly."""
    directory = tmp_path_factory.mktemp("penstock") / "store"
    records = penstock_side.write(directory, workload(with_version_2=reads_version_2))
    read = _read_by_java(java, copy_store(directory), records, reads_version_2)
    return WrittenStore(directory, records, read, True, reads_version_2)
