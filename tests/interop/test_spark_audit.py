"""A store that Java RocketMQ wrote, with no broker running: audited, queried and archived by Spark.

The audit of the whole store, of its archive, and the comparison of both with what Java was told when it wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop import penstock_side
from tests.interop.conftest import WrittenStore, WrittenStores
from tests.interop.java_messages import StoredMessage
from tests.interop.java_store import JavaStore
from tests.interop.workload import in_queues

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from penstock.spark.pipelines.archive import archive
from penstock.spark.pipelines.audit import AuditResult, audit
from penstock.spark.pipelines.audit_sources import is_system
from penstock.spark.pipelines.sql import sql

pytestmark = pytest.mark.leak_exempt("Py4J keeps threads and sockets to its JVM")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from penstock.spark.session import session

    settings = {"spark.sql.shuffle.partitions": "1", "spark.log.level": "ERROR"}
    made = session("interop", "local[2]", log=tmp_path_factory.mktemp("spark") / "spark.log", **settings)
    yield made
    made.stop()


@pytest.fixture(scope="module", params=["java-clean", "java-halted"])
def written(request: pytest.FixtureRequest, java_5: JavaStore, written_stores: WrittenStores) -> WrittenStore:
    """Written by RocketMQ 5, and stopped or halted."""
    return written_stores.get(java_5, request.param)


COMPRESSED = 0x1


def audited(written: WrittenStore) -> dict[tuple[str, int], list[StoredMessage]]:
    """Records by queue, of the topics that an audit looks at when none is named; the place in the list is the offset."""
    return {
        key: records
        for key, records in in_queues(written.records).items()
        if not is_system(key[0]) and not key[0].startswith("%RETRY%")
    }


def is_readable(record: StoredMessage) -> bool:
    """The workload says of some bodies that they are packed, and they are not: no consumer could unpack them."""
    return not record.sys_flag & COMPRESSED


def offsets_of(gap: dict[str, Any]) -> set[tuple[str, int, int]]:
    return {(gap["topic"], gap["queue_id"], at) for at in range(gap["first_offset"], gap["last_offset"] + 1)}


def queues_of(result: AuditResult) -> dict[tuple[str, int], int]:
    rows = result.tables["queues"].to_pylist()
    return {(row["topic"], row["queue_id"]): row["rows"] for row in rows if row["rows"]}


@pytest.mark.feature("spark-stores", "rocketmq-5.3")
@pytest.mark.seed("S4-5")
@pytest.mark.invariant("I2", "I4")
@pytest.mark.timeout(900)
def test_a_java_store_is_audited_queried_and_archived(
    spark: Any, written: WrittenStore, tmp_path: Path
) -> None:
    before = penstock_side.fingerprint(written.directory)
    queues = audited(written)
    wanted = {key: sum(map(is_readable, records)) for key, records in queues.items()}
    wanted = {key: count for key, count in wanted.items() if count}
    unreadable = {
        (*key, offset)
        for key, records in queues.items()
        for offset, record in enumerate(records)
        if not is_readable(record)
    }
    assert unreadable

    # The store itself: every message that Java acknowledged once, and by name those that nobody can unpack.
    found = audit(f"store:{written.directory}", tmp_path / "report", spark=spark)
    assert queues_of(found) == wanted
    gaps = found.tables["gaps"].to_pylist()
    assert set().union(*map(offsets_of, gaps)) == unreadable
    assert {gap["reason"] for gap in gaps} == {"damaged: its body cannot be unpacked"}
    assert not {"repeated", "duplicate-ids"} & {item.kind for item in found.problems}
    assert (tmp_path / "report" / "report.html").is_file()

    # The same by SQL, straight from the files.
    topics = sorted({topic for topic, _ in wanted})
    rows = sql(
        "select queue_id, count(*) n from events group by queue_id", spark=spark, store=str(written.directory)
    )
    counted = {("events", row.queue_id): row.n for row in rows.collect()}
    assert counted == {key: n for key, n in wanted.items() if key[0] == "events"}

    # Archived, and compared with the store message by message.
    done = archive(topics, str(tmp_path / "archive"), spark=spark, store=str(written.directory), once=True)
    assert done.gaps > 0
    compared = audit(
        f"store:{written.directory}", against=f"archive:{tmp_path / 'archive'}", topics=topics, spark=spark
    )
    assert compared.tables["differences"].num_rows == 0
    assert sum(row["right_rows"] for row in compared.tables["compared"].to_pylist()) == sum(wanted.values())
    assert penstock_side.fingerprint(written.directory) == before
