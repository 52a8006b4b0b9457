"""Checksums of bodies: each size takes its own way through blocks, lanes and the rest behind them."""

import random
import zlib

import pytest

from penstock._hot.checks import checksum
from penstock.message import Message
from penstock.store import MessageStore, StoreOptions

BYTES = random.Random(11).randbytes(4_096)


@pytest.mark.parametrize("fill", [BYTES, bytes(4_096), b"\xff" * 4_096], ids=["random", "zeros", "ones"])
def test_every_size_is_zlibs(fill):
    """Up to four wide blocks and a rest; empty bodies have none."""
    sizes = range(1, 4 * 128 + 17)
    assert [checksum(fill[:size]) for size in sizes] == [
        zlib.crc32(fill[:size]) & 0x7FFFFFFF for size in sizes
    ]


@pytest.mark.parametrize("at", [1, 3, 8, 15])
def test_wherever_they_lie(at):
    for size in (1, 15, 16, 17, 63, 64, 65, 100, 255, 256, 257, 1_000, 1_024, 4_000):
        part = BYTES[at : at + size]
        assert checksum(part) == zlib.crc32(part) & 0x7FFFFFFF, size


@pytest.mark.parametrize("size", [16, 31, 100, 257, 1_039])
def test_any_bit_that_turns_shows(size):
    whole = checksum(BYTES[:size])
    for bit in range(size * 8):
        turned = bytearray(BYTES[:size])
        turned[bit // 8] ^= 1 << bit % 8
        assert checksum(bytes(turned)) != whole, bit


def test_appended_bodies_are_copied_whole_and_summed(tmp_path):
    """The append copies and sums large bodies in one loop."""
    sizes = [*range(1, 20), 63, 64, 100, *range(250, 420), *range(1_020, 1_050)]
    with MessageStore.open(tmp_path, StoreOptions(segment_size_bytes=4 << 20, index_enabled=False)) as store:
        for size in sizes:
            store.append(Message("T", BYTES[:size]), 0)
        found = []
        while len(found) < len(sizes):
            found += store.read("T", 0, len(found))
    assert [message.body for message in found] == [BYTES[:size] for size in sizes]
    assert [message.body_crc for message in found] == [zlib.crc32(BYTES[:n]) & 0x7FFFFFFF for n in sizes]
