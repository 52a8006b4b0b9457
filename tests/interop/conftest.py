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

# Before anybody imports them: their assertions shall say what they compared.
pytest.register_assert_rewrite(
    "tests.interop.penstock_side", "tests.interop.wire.peer", "tests.interop.wire.crosscheck"
)

from tests.interop import java_store, penstock_side  # noqa: E402
from tests.interop.java_messages import ReadResult, StoredMessage  # noqa: E402
from tests.interop.java_release import VERSIONS  # noqa: E402
from tests.interop.java_store import JavaStore  # noqa: E402
from tests.interop.workload import expected_of_java, in_queues, queries, times, workload  # noqa: E402

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


# -- releases ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def release() -> Callable[[str], JavaStore]:
    """A release by its version, or a skip that says why there is none."""
    reason = java_store.available()

    def get(version: str) -> JavaStore:
        if reason is not None:
            pytest.skip(reason)
        return java_store.prepare(version)

    return get


@pytest.fixture(scope="session", params=VERSIONS)
def java(request: pytest.FixtureRequest, release: Callable[[str], JavaStore]) -> JavaStore:
    """The store classes of each release in turn."""
    return release(request.param)


@pytest.fixture(scope="session")
def java_5(release: Callable[[str], JavaStore]) -> JavaStore:
    """The 5 line, which knows records of version 2 and sealed records."""
    return release(VERSIONS[0])


@pytest.fixture(scope="session")
def java_4(release: Callable[[str], JavaStore]) -> JavaStore:
    """The 4 line, which knows neither."""
    return release(VERSIONS[1])


# -- stores ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def copy_store(tmp_path_factory: pytest.TempPathFactory) -> CopyStore:
    def copy(directory: Path) -> Path:
        target = tmp_path_factory.mktemp("copy") / "store"
        shutil.copytree(directory, target)
        return target

    return copy


class WrittenStores:
    """Makes each store once. Fixtures with parameters would be made again whenever pytest changes the release."""

    def __init__(self, tmp_path_factory: pytest.TempPathFactory, copy_store: CopyStore) -> None:
        self._tmp_path_factory = tmp_path_factory
        self._copy_store = copy_store
        self._made: dict[tuple[str, str], WrittenStore] = {}

    def get(self, java: JavaStore, writer: str) -> WrittenStore:
        key = (java.version, writer)
        if key not in self._made:
            self._made[key] = self._make(java, writer)
        return self._made[key]

    def _make(self, java: JavaStore, writer: str) -> WrittenStore:
        directory = self._tmp_path_factory.mktemp(writer) / "store"
        with_version_2 = not java.version.startswith("4.")
        specs = workload(with_version_2=with_version_2)
        if writer == "penstock":
            records = penstock_side.write(directory, specs)
        else:
            written = java.write(directory, specs, halt=writer == "java-halted")
            assert {put.status for put in written.puts} == {"PUT_OK"}
            records = expected_of_java(specs, written.puts)
        read = self._read_by_java(java, self._copy_store(directory), records, with_version_2)
        return WrittenStore(directory, records, read, writer != "java-halted", with_version_2)

    @staticmethod
    def _read_by_java(
        java: JavaStore, directory: Path, records: list[StoredMessage], with_version_2: bool
    ) -> ReadResult:
        # Half and rolled-back messages are in no queue; a part of the others shows that positions work.
        queued = {record.physical_offset for queue in in_queues(records).values() for record in queue}
        return java.read(
            directory,
            queries=queries(with_version_2=with_version_2),
            positions={record.physical_offset for record in records} - queued
            | {record.physical_offset for record in records[::25]},
            times=times(records) if with_version_2 else (),
            halt=True,
        )


@pytest.fixture(scope="session")
def written_stores(tmp_path_factory: pytest.TempPathFactory, copy_store: CopyStore) -> WrittenStores:
    return WrittenStores(tmp_path_factory, copy_store)


@pytest.fixture(scope="session", params=["java-clean", "java-halted"])
def java_written(
    request: pytest.FixtureRequest, java: JavaStore, written_stores: WrittenStores
) -> WrittenStore:
    """Written by Java, stopped cleanly or by a halt of the JVM right after the last put."""
    return written_stores.get(java, request.param)


@pytest.fixture(scope="session")
def java_halted(java: JavaStore, written_stores: WrittenStores) -> WrittenStore:
    """Only the second of these."""
    return written_stores.get(java, "java-halted")


@pytest.fixture(scope="session")
def penstock_written(java: JavaStore, written_stores: WrittenStores) -> WrittenStore:
    """Written by Penstock and stopped cleanly."""
    return written_stores.get(java, "penstock")
