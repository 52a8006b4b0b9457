"""Paths of archive files: what they say, that they can be read back, and that no reader takes one for hidden."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.pipelines.archive_names import (
    ArchivedFile,
    file_name,
    folder_of,
    parse_path,
    queue_key,
    split_key,
)

TOPICS = st.text("abcXYZ019%|_-", min_size=1, max_size=20)
BROKERS = st.text("abcXYZ019%|_-. @/é", max_size=20)


def archived(
    topic: str = "orders", broker: str = "broker-a", queue_id: int = 3, first: int = 7
) -> ArchivedFile:
    return ArchivedFile(topic, "2025-01-31", broker, queue_id, first, first + 9, 10, 1234, 1, 2)


def test_paths_look_as_documented() -> None:
    assert archived().path == (
        "topic=orders/date=2025-01-31/broker-a-3-00000000000000000007-00000000000000000016.parquet"
    )
    assert folder_of("%RETRY%billing", "2025-01-31") == "topic=%25RETRY%25billing/date=2025-01-31"
    assert file_name("", 3, 7, 7) == "@-3-00000000000000000007-00000000000000000007.parquet"


@given(TOPICS, BROKERS, st.integers(0, 1 << 31), st.integers(0, 1 << 62))
def test_a_path_can_be_read_back(topic: str, broker: str, queue_id: int, first: int) -> None:
    file = archived(topic, broker, queue_id, first)
    parts = parse_path(file.path)
    assert parts is not None
    assert (parts.topic, parts.day, parts.broker, parts.queue_id) == (topic, "2025-01-31", broker, queue_id)
    assert (parts.first, parts.last) == (first, first + 9)
    assert ArchivedFile.of(file.record()) == file


@given(BROKERS)
def test_no_name_is_hidden_or_leaves_its_folder(broker: str) -> None:
    name = file_name(broker, 0, 0, 0)
    assert name[0] not in "._"
    assert "/" not in name


@pytest.mark.parametrize(
    "path",
    [
        "a.parquet",
        "topic=t/a.parquet",
        "topic=t/date=d/a.parquet",
        "x=t/date=d/b-0-1-2.parquet",
        "_manifest/1.json",
    ],
)
def test_other_files_are_none_of_ours(path: str) -> None:
    assert parse_path(path) is None


def test_queue_keys() -> None:
    assert queue_key("t", "", 4) == "t//4"
    assert split_key("t//4") == ("t", "", 4)
