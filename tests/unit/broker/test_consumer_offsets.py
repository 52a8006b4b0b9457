"""Consumer offsets: commits, resets, removal, the file."""

import asyncio
from pathlib import Path

from penstock.broker.offsets import ConsumerOffsets
from penstock.broker.options import BrokerOptions
from penstock.metadata.fastjson import loads
from penstock.runtime import Runtime
from penstock.testing import ManualClock
from tests.unit.broker.journals import journal

OPTIONS = BrokerOptions()


def offsets(path: Path) -> ConsumerOffsets:
    table = ConsumerOffsets(OPTIONS, Runtime(clock=ManualClock()), journal(path))
    table.load()
    return table


def test_any_offset_is_kept(tmp_path: Path) -> None:
    table = offsets(tmp_path)
    assert table.query("g", "T", 0) == -1
    assert table.commit("g", "T", 0, 10)
    assert table.query("g", "T", 0) == 10
    assert table.commit("g", "T", 0, 3)  # also a smaller one
    assert table.query("g", "T", 0) == 3
    assert table.query("g", "T", 1) == -1
    assert table.query("h", "T", 0) == -1
    assert table.queues("g", "T") == {0: 3}


def test_what_was_handed_out_is_kept_apart(tmp_path: Path) -> None:
    table = offsets(tmp_path)
    assert table.query_pull("g", "T", 0) == -1
    table.commit_pull("g", "T", 0, 5)
    assert table.query_pull("g", "T", 0) == 5
    assert table.query("g", "T", 0) == -1


def test_a_reset_counts_at_once_and_drops_commits_until_the_next_pull(tmp_path: Path) -> None:
    table = offsets(tmp_path)
    woken: list[tuple[str, int]] = []
    table.on_reset.append(lambda topic, queue_id: woken.append((topic, queue_id)))
    table.commit("g", "T", 0, 100)
    table.assign_reset("g", "T", 0, 7)
    assert woken == [("T", 0)]
    assert table.has_reset("g", "T", 0)
    assert table.query("g", "T", 0) == 7
    assert not table.commit("g", "T", 0, 101)
    assert table.commit("g", "T", 1, 5)
    assert table.commit("h", "T", 0, 5)
    assert table.query("g", "T", 0) == 7
    assert table.take_reset("h", "T", 0) is None
    assert table.take_reset("g", "T", 1) is None
    assert table.take_reset("g", "T", 0) == 7
    assert table.take_reset("g", "T", 0) is None
    assert not table.has_reset("g", "T", 0)
    assert table.commit("g", "T", 0, 8)


def test_topics_and_groups(tmp_path: Path) -> None:
    table = offsets(tmp_path)
    table.commit("g", "T", 0, 1)
    table.commit("h", "T", 0, 2)
    table.commit("g", "U", 0, 3)
    table.commit_pull("p", "T", 0, 3)
    table.assign_reset("r", "T", 0, 3)
    assert sorted(table.groups_of_topic("T")) == ["g", "h", "r"]
    assert sorted(table.topics_of_group("g")) == ["T", "U"]
    table.remove_topic("T")
    assert table.groups_of_topic("T") == []
    assert table.query_pull("p", "T", 0) == -1
    assert table.take_reset("r", "T", 0) is None
    assert table.query("g", "U", 0) == 3
    table.remove_group("g")
    assert list(table.all()) == []


def test_offsets_survive_a_restart_in_java_s_file(tmp_path: Path) -> None:
    async def life() -> None:
        table = offsets(tmp_path)
        table.start()
        for queue_id in range(3):
            table.commit("g", "T", queue_id, 10 + queue_id)
        table.assign_reset("g", "T", 1, 4)
        await table.stop()

    asyncio.run(life())
    written = loads((tmp_path / "consumerOffset.json").read_bytes())
    assert isinstance(written, dict)
    assert written["offsetTable"] == {"T@g": {"0": 10, "1": 4, "2": 12}}
    again = offsets(tmp_path)
    assert [again.query("g", "T", queue_id) for queue_id in range(3)] == [10, 4, 12]
    assert again.stored.is_clean


def test_java_s_own_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "consumerOffset.json").write_text(
        '{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1},"offsetTable":{"T@g":{0:5,1:6}}}'
    )
    table = offsets(tmp_path)
    assert (table.query("g", "T", 0), table.query("g", "T", 1)) == (5, 6)


def test_the_same_offset_again_is_no_change(tmp_path: Path) -> None:
    async def life() -> None:
        table = offsets(tmp_path)
        table.start()
        table.commit("g", "T", 0, 1)
        assert await table.stored.save_file()
        table.commit("g", "T", 0, 1)
        assert table.stored.is_clean
        await table.stop()

    asyncio.run(life())
