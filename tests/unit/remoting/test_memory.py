"""The budgets of connections by themselves: allowances, and who goes when they are exceeded."""

from __future__ import annotations

from penstock.remoting import RemotingOptions
from penstock.remoting.memory import Memory

MIB = 1 << 20
OPTIONS = RemotingOptions(incomplete_bytes_max=8 * MIB, unread_bytes_max=16 * MIB)


class Peer:
    def __init__(self, name: str) -> None:
        self.name = name
        self.is_open = True
        self.kept_bytes = self.kept_since_ms = self.noted_bytes = self.progress_ms = 0
        self.unread_bytes = 0


class Room:
    """A budget, and the peers that it closed, in order."""

    def __init__(self, *, is_server: bool = True) -> None:
        self.closed: list[str] = []
        self.memory = Memory(OPTIONS, self._close if is_server else None)

    def _close(self, peer: object, why: str) -> None:
        assert isinstance(peer, Peer)
        assert str(peer.kept_bytes or peer.noted_bytes) in why
        self.closed.append(peer.name)
        peer.unread_bytes = 0
        self.memory.forget(peer)

    def write(self, peer: Peer, size: int, now_ms: int) -> None:
        """So much is written that nobody reads."""
        peer.unread_bytes += size
        self.memory.note(peer, now_ms, size)


def test_many_slow_readers_are_allowed_less_each_and_do_not_fill_the_budget() -> None:
    room = Room()
    peers = [Peer(str(number)) for number in range(200)]
    assert room.memory.allowance == OPTIONS.unread_bytes_max // 8
    for now_ms in range(20):
        for peer in peers:
            if peer.unread_bytes <= room.memory.allowance:
                room.write(peer, 32 * 1024, now_ms)
    assert not room.closed
    assert room.memory.answers <= OPTIONS.unread_bytes_max // 2 + 32 * 1024
    assert 0 <= room.memory.allowance < 64 * 1024


def test_the_peer_that_left_most_unread_for_longest_goes_first() -> None:
    room = Room()
    silent, reading, small = Peer("silent"), Peer("reading"), Peer("small")
    room.write(small, 1_000, 0)
    room.write(silent, 6 * MIB, 0)
    room.write(reading, 8 * MIB, 0)
    reading.unread_bytes -= 1
    room.memory.note(reading, 9_000)
    room.write(Peer("new"), 4 * MIB, 10_000)
    assert room.closed == ["silent"], "more waits for the one that reads, but it makes progress"


def test_what_peers_have_read_meanwhile_is_looked_at_before_one_is_closed() -> None:
    room = Room()
    peers = [Peer(str(number)) for number in range(4)]
    for peer in peers:
        room.write(peer, 4 * MIB, 0)
    peers[0].unread_bytes = 0
    room.write(peers[1], MIB, 1_000)
    assert not room.closed


def test_the_frame_that_takes_most_for_longest_goes_first() -> None:
    room = Room()
    old_and_small, stuck, fresh = Peer("small"), Peer("stuck"), Peer("fresh")
    room.memory.kept(old_and_small, 100, 0)
    room.memory.kept(stuck, 3 * MIB, 0)
    room.memory.kept(fresh, 5 * MIB, 10_000)
    room.memory.kept(fresh, 1, 10_001)
    assert room.closed == ["stuck"]
    room.memory.kept(fresh, -5 * MIB - 1, 10_002)
    room.memory.kept(old_and_small, -100, 10_002)
    assert room.memory.requests == 0


def test_patience_is_shorter_while_much_is_unread() -> None:
    room = Room()
    assert room.memory.timeout_ms == OPTIONS.write_timeout_ms
    peer = Peer("one")
    room.write(peer, 5 * MIB, 0)
    assert room.memory.timeout_ms == OPTIONS.write_timeout_pressed_ms
    room.memory.forget(peer)
    assert room.memory.timeout_ms == OPTIONS.write_timeout_ms


def test_large_answers_get_smaller_while_much_is_unread() -> None:
    room = Room()
    first = room.memory.room
    sizes = []
    for number in range(20):
        sizes.append(room.memory.room)
        room.write(Peer(str(number)), sizes[-1], number)
    assert sizes[0] == first == 2 * MIB
    assert sizes[-1] == 64 * 1024
    assert not room.closed
    assert sizes == sorted(sizes, reverse=True)


def test_a_client_keeps_what_its_program_asks_for() -> None:
    room = Room(is_server=False)
    room.memory.kept(Peer("one"), 100 * MIB, 0)
    room.write(Peer("two"), 100 * MIB, 0)
    assert room.memory.timeout_ms == OPTIONS.write_timeout_ms
