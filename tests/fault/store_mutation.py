"""Damage to the derived files of a data directory: everything but the log, from a seed and a number.

flips, cuts, zeroed pages, missing files and folders, files that changed places, files of another size, random bytes,
and numbers at the ends of their range where a file has numbers, under a checksum that is right where it has one
"""

from __future__ import annotations

import json
import random
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

EXTREMES = (0, 1, -1, 2**31 - 1, -(2**31), 2**32, 2**40, 2**62, 2**62 + 1, 2**63 - 1, -(2**63))
ENTRY_SIZE = 20
PAGE = 4096
# The log, and tables of what clients and operators have set.
NOT_DERIVED = ("commitlog", "lock", "abort", "config", "prepare")
MANIFEST = "penstock.manifest.json"


def derived_files(root: Path) -> list[Path]:
    """Files that can be made again from the log, and those that only save reading it."""
    found = [path for path in sorted(root.rglob("*")) if path.is_file()]
    parts = ((path, path.relative_to(root).parts[0]) for path in found)
    return [path for path, first in parts if first not in NOT_DERIVED or path.stem == "timercheck"]


def mutate(root: Path, luck: random.Random) -> str:
    """Damage one to three files; what was done."""
    done = []
    for _ in range(luck.choice((1, 1, 1, 2, 3))):
        files = derived_files(root)
        if not files:
            break
        # By kind first: there are many queue files, and one checkpoint.
        kind = luck.choice(sorted({path.relative_to(root).parts[0] for path in files}))
        path = luck.choice([path for path in files if path.relative_to(root).parts[0] == kind])
        how = luck.choice(HOWS)
        done.append(f"{how.__name__} {path.relative_to(root)} {how(path, luck, root) or ''}".strip())
    return "; ".join(done)


def flip_bits(path: Path, luck: random.Random, root: Path) -> str:
    data = bytearray(path.read_bytes())
    used = len(data.rstrip(b"\0")) or len(data)
    places = [luck.randrange(used) for _ in range(luck.choice((1, 1, 3, 20)))] if used else []
    for place in places:
        data[place] ^= 1 << luck.randrange(8)
    path.write_bytes(data)
    return str(places)


def cut_short(path: Path, luck: random.Random, root: Path) -> str:
    data = path.read_bytes()
    size = luck.choice((0, 1, len(data) // 2, max(len(data) - 1, 0), luck.randrange(len(data) + 1)))
    path.write_bytes(data[:size])
    return f"to {size} of {len(data)}"


def zero_page(path: Path, luck: random.Random, root: Path) -> str:
    """A page, or what would be a small one in a small file."""
    data = bytearray(path.read_bytes())
    size = luck.choice((PAGE, 512, 60, 20))
    start = luck.randrange(max(len(data), 1)) // size * size
    data[start : start + size] = bytes(min(size, len(data) - start))
    path.write_bytes(data)
    return f"from {start}, {size} bytes"


def remove(path: Path, luck: random.Random, root: Path) -> str:
    if luck.random() < 0.2 and path.parent != root:
        shutil.rmtree(path.parent)
        return "with its folder"
    path.unlink()
    return ""


def swap(path: Path, luck: random.Random, root: Path) -> str:
    """It changes places with another one, mostly of its kind."""
    files = [other for other in derived_files(root) if other != path]
    kin = [other for other in files if other.parent.parent.parent == path.parent.parent.parent]
    if not files:
        return ""
    other = luck.choice(kin if kin and luck.random() < 0.8 else files)
    ours, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(ours)
    return f"with {other.relative_to(root)}"


def add_bytes(path: Path, luck: random.Random, root: Path) -> str:
    more = luck.choice((b"\0", b"x" * 20, bytes(PAGE), b"\xff" * 100))
    path.write_bytes(path.read_bytes() + more)
    return str(len(more))


def fill_with_noise(path: Path, luck: random.Random, root: Path) -> str:
    path.write_bytes(luck.randbytes(path.stat().st_size))
    return ""


def put_extremes(path: Path, luck: random.Random, root: Path) -> str:
    """Where a file has a number, one that a sum with it would overflow."""
    data = bytearray(path.read_bytes())
    if path.name == MANIFEST:
        return extreme_manifest(path, luck)
    step, fields = LAYOUTS.get(path.relative_to(root).parts[0], (8, ((0, "q"),)))
    used = len(data.rstrip(b"\0"))
    if not used:
        return ""
    # The newest entry is what opening looks at.
    number = luck.choice((0, used // step, max(used - 1, 0) // step, luck.randrange(used // step + 1)))
    at, kind = luck.choice(fields)
    value = luck.choice(EXTREMES)
    if kind == "i":
        value = max(min(value, 2**31 - 1), -(2**31))
    place = number * step + at
    if place + struct.calcsize(kind) > len(data):
        return ""
    struct.pack_into(f">{kind}", data, place, value)
    if path.name == "checkpoint" and luck.random() < 0.7:
        struct.pack_into(">I", data, 52, zlib.crc32(data[:52]))
    path.write_bytes(data)
    return f"{value} at {place}"


# Of what a file consists, and where in it numbers are.
LAYOUTS: dict[str, tuple[int, tuple[tuple[int, str], ...]]] = {
    "consumequeue": (ENTRY_SIZE, ((0, "q"), (0, "q"), (8, "i"), (12, "q"))),
    "index": (ENTRY_SIZE, ((0, "q"), (0, "i"), (4, "q"), (8, "q"), (12, "i"), (16, "i"))),
    "timerlog": (52, ((0, "i"), (4, "q"), (12, "i"), (16, "q"), (24, "i"), (28, "q"))),
    "timerwheel": (32, ((0, "q"), (8, "q"), (16, "q"), (24, "i"))),
}


def extreme_manifest(path: Path, luck: random.Random) -> str:
    try:
        value = json.loads(path.read_bytes().partition(b"\n")[0])
        # Under a checksum sizes are believed, which protect from options that are wrong, and the ends of queues,
        # below which no offset is given out.
        name = luck.choice([name for name in value if name not in ("segmentSizeBytes", "queueFileEntries")])
        number = luck.choice(EXTREMES)
        others: tuple[object, ...] = (
            (str(number), None, []) if name == "queues" else (str(number), None, [], {})
        )
        value[name] = luck.choice((number, *others))
    except (ValueError, KeyError, TypeError, AttributeError):
        return "(it was damaged already)"
    line = json.dumps(value).encode()
    path.write_bytes(b"%s\ncrc32 %08x\n" % (line, zlib.crc32(line)))
    return f"{name}: {number}"


HOWS: tuple[Callable[[Path, random.Random, Path], str], ...] = (
    *(flip_bits, flip_bits, cut_short, zero_page, remove, swap, add_bytes, fill_with_noise),
    *(put_extremes, put_extremes, put_extremes),
)
