"""Offsets in memory, at the broker and in files; and where a group begins."""

import asyncio
from pathlib import Path

import pytest

from penstock.client.offset_store import REPEAT_MS, FileOffsets, OffsetStore, file_name
from penstock.client.start_offsets import StartOffsets
from penstock.errors import ClientError, ConnectError, PenstockError
from penstock.protocol.bodies import MessageQueue
from penstock.runtime import Runtime
from penstock.testing import ManualClock

Q = [MessageQueue("T", "b", number) for number in range(4)]
RETRY = MessageQueue("%RETRY%g", "b", 0)


class Memory:
    """A backend in memory that can be told to fail."""

    def __init__(self, **stored: int) -> None:
        self.stored: dict[MessageQueue, int] = {Q[int(name[1:])]: offset for name, offset in stored.items()}
        self.writes: list[dict[MessageQueue, int]] = []
        self.broken: set[MessageQueue] = set()
        self.fetches = 0

    async def fetch(self, queue: MessageQueue) -> int | None:
        self.fetches += 1
        if queue in self.broken:
            raise ConnectError("down")
        return self.stored.get(queue)

    async def store(
        self, offsets: dict[MessageQueue, int], *, surely: bool
    ) -> dict[MessageQueue, PenstockError]:
        self.writes.append(dict(offsets))
        failed = {queue: ConnectError("down") for queue in offsets if queue in self.broken}
        self.stored.update({queue: offset for queue, offset in offsets.items() if queue not in failed})
        return dict(failed)

    async def close(self) -> None:
        """Nothing to give up."""


def test_an_offset_grows_unless_it_is_set_on_purpose() -> None:
    store = OffsetStore(Memory(), ManualClock())
    store.advance(Q[0], 5)
    store.advance(Q[0], 3)
    assert store.get(Q[0]) == 5
    store.reset(Q[0], 2)
    assert store.get(Q[0]) == 2
    store.is_manual = True
    store.advance(Q[0], 9)
    store.reset(Q[0], 9)
    assert store.get(Q[0]) == 2
    store.set(Q[0], 1)
    assert store.offsets == {Q[0]: 1}
    store.forget(Q[0])
    assert store.get(Q[0]) is None


def test_only_what_changed_is_written_and_now_and_then_everything() -> None:
    async def scenario() -> None:
        clock, memory = ManualClock(), Memory()
        store = OffsetStore(memory, clock)
        store.advance(Q[0], 5)
        store.advance(Q[1], 7)
        assert await store.persist() == {}
        assert await store.persist() == {}
        store.advance(Q[1], 8)
        await store.persist()
        assert memory.writes == [{Q[0]: 5, Q[1]: 7}, {Q[1]: 8}]
        clock.advance(REPEAT_MS)
        await store.persist()
        assert memory.writes[-1] == {Q[0]: 5, Q[1]: 8}

    asyncio.run(scenario())


def test_what_could_not_be_written_is_written_next_time() -> None:
    async def scenario() -> None:
        memory = Memory()
        memory.broken = {Q[0]}
        store = OffsetStore(memory, ManualClock())
        store.advance(Q[0], 5)
        store.advance(Q[1], 5)
        assert list(await store.persist(surely=True)) == [Q[0]]
        memory.broken = set()
        assert await store.persist([Q[0], Q[1], Q[2]], surely=True) == {}
        assert memory.writes[-1] == {Q[0]: 5}

    asyncio.run(scenario())


# -- files -------------------------------------------------------------------------------------------------------


def test_a_file_keeps_offsets_and_two_consumers_have_two(tmp_path: Path) -> None:
    async def scenario() -> None:
        first, second = (FileOffsets(tmp_path, "DEFAULT", "g", Runtime.system()) for _ in range(2))
        assert await first.fetch(Q[0]) is None
        assert await second.fetch(Q[0]) is None
        assert first.path != second.path
        assert await first.store({Q[0]: 5}, surely=True) == {}
        assert await first.store({Q[1]: 6}, surely=True) == {}
        assert await second.fetch(Q[0]) is None
        await first.close()
        await second.close()
        again = FileOffsets(tmp_path, "DEFAULT", "g", Runtime.system())
        assert [await again.fetch(queue) for queue in Q[:3]] == [5, 6, None]
        await again.close()

    asyncio.run(scenario())


def test_a_file_of_a_java_client_is_read_and_a_damaged_one_is_not_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "DEFAULT" / "g"
    folder.mkdir(parents=True)
    java = '{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:9}}'
    (folder / "offsets.json").write_text(java)

    async def scenario(expected: int | None) -> None:
        offsets = FileOffsets(tmp_path, "DEFAULT", "g", Runtime.system())
        assert await offsets.fetch(Q[1]) == expected
        await offsets.close()

    asyncio.run(scenario(9))
    (folder / "offsets.json").write_text("{nonsense")
    asyncio.run(scenario(None))
    assert "cannot be read" in caplog.text


@pytest.mark.abuse("A6")
@pytest.mark.parametrize("name", ["..", ".", "a/b", "../../x", "a\\b", "%41", "x" * 500, "a\x00b", "CON"])
def test_names_have_no_meaning_to_the_file_system(name: str, tmp_path: Path) -> None:
    safe = file_name(name)
    assert "/" not in safe
    assert "\x00" not in safe
    assert safe not in ("", ".", "..")
    assert len(safe) <= 120
    assert (tmp_path / safe).resolve().parent == tmp_path.resolve()


@pytest.mark.abuse("A6")
def test_different_names_have_different_files() -> None:
    names = ["a", "A", ".a", "%2Ea", "a/b", "a%2Fb", "x" * 300, "x" * 301]
    assert len({file_name(name) for name in names}) == len(names)


def test_a_place_that_cannot_be_written_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def scenario() -> None:
        offsets = FileOffsets(tmp_path / "file", "DEFAULT", "g", Runtime.system())
        with pytest.raises(ClientError, match="offset_directory"):
            await offsets.fetch(Q[0])
        assert list(await offsets.store({Q[0]: 1}, surely=True)) == [Q[0]]

    asyncio.run(scenario())


# -- where to begin ----------------------------------------------------------------------------------------------


class Calls:
    """The broker's side: the first offset is 0 or more, the end is 100, half of it is at time 1000."""

    def __init__(self, memory: Memory, first: int = 0) -> None:
        self.memory = memory
        self.first = first
        self.end = 100

    async def committed(self, queue: MessageQueue, *, zero_if_young: bool = False) -> int | None:
        found = self.memory.stored.get(queue)
        return 0 if found is None and zero_if_young and self.first == 0 and self.end else found

    async def first_offset(self, queue: MessageQueue) -> int:
        return self.first

    async def end_offset(self, queue: MessageQueue) -> int:
        end = self.end
        if not end:
            self.end = 1  # a message comes right after the question
        return end

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        return 50 if timestamp_ms == 1000 else -1


def find(
    queue: MessageQueue,
    memory: Memory,
    *,
    first: int = 0,
    start: str = "last",
    start_ms: int = -1,
    broadcasting: bool = False,
    seen: list[MessageQueue] | None = None,
) -> int:
    async def scenario() -> int:
        starts = StartOffsets(
            Calls(memory, first),  # type: ignore[arg-type]
            OffsetStore(memory, ManualClock()),
            start="time" if start_ms >= 0 else start,
            start_ms=start_ms,
            broadcasting=broadcasting,
        )
        starts.see("T", Q if seen is None else seen)
        starts.see("T", [])  # only the first look counts
        return await starts.find(queue)

    return asyncio.run(scenario())


def test_where_the_group_stopped_comes_first() -> None:
    assert find(Q[0], Memory(q0=42), start="first") == 42


def test_a_new_group_begins_as_it_was_told() -> None:
    assert find(Q[0], Memory(), start="first", first=7) == 7
    assert find(Q[0], Memory()) == 100
    assert find(Q[0], Memory(), start_ms=1000) == 50
    assert find(Q[0], Memory(), broadcasting=True) == 100


def test_by_default_a_young_queue_is_read_from_its_beginning() -> None:
    assert find(Q[0], Memory(), start="auto") == 0
    assert find(Q[0], Memory(), start="auto", first=5) == 100
    assert find(Q[0], Memory(), start="auto", broadcasting=True) == 0
    assert find(Q[0], Memory(q0=3), start="auto") == 3


def test_retry_topics_are_read_from_their_beginning() -> None:
    assert find(RETRY, Memory(), first=3) == 3


def test_a_group_that_knows_the_topic_misses_nothing_in_a_young_queue() -> None:
    assert find(Q[0], Memory(q3=1)) == 0
    assert find(Q[0], Memory(q3=1), start_ms=1000) == 0
    # A queue that has lost its first messages was there before: as it was told.
    assert find(Q[0], Memory(q3=1), first=9) == 100


def test_a_queue_that_came_later_is_read_from_its_beginning() -> None:
    assert find(Q[3], Memory(), seen=Q[:3]) == 0
    assert find(Q[0], Memory(), seen=[]) == 0
    assert find(Q[3], Memory(), seen=Q[:3], broadcasting=True) == 0
    assert find(Q[3], Memory(), seen=Q[:3], broadcasting=True, first=5) == 100


@pytest.mark.parametrize("start", ["auto", "last"])
def test_a_message_that_comes_between_two_questions_is_not_missed(start: str) -> None:
    async def scenario() -> int:
        memory = Memory(q3=1)
        calls = Calls(memory)
        calls.end = 0
        starts = StartOffsets(
            calls,  # type: ignore[arg-type]
            OffsetStore(memory, ManualClock()),
            start=start,
            broadcasting=False,
        )
        starts.see("T", Q)
        return await starts.find(Q[0])

    assert asyncio.run(scenario()) == 0


def test_where_a_broker_cannot_be_asked_nothing_is_missed() -> None:
    memory = Memory()
    memory.broken = {Q[3]}
    assert find(Q[0], memory) == 0
    with pytest.raises(ConnectError):
        find(Q[3], memory)


def test_whether_a_group_knows_a_topic_is_asked_once() -> None:
    async def scenario() -> None:
        memory = Memory()
        starts = StartOffsets(
            Calls(memory),  # type: ignore[arg-type]
            OffsetStore(memory, ManualClock()),
            start="last",
            broadcasting=False,
        )
        starts.see("T", Q)
        assert await asyncio.gather(*map(starts.find, Q)) == [100] * 4
        assert memory.fetches == 8

    asyncio.run(scenario())
