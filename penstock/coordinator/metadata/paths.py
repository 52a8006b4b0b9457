"""What a path and a value may be, checked alike for every backend before anything is sent or written.

    /brokers/main/broker-a       absolute, no empty part, no "." or "..", no control characters

Rule: what one backend takes, all take. ZooKeeper is the strictest, so its rules are the rules. Plain functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.coordinator.metadata.port import VALUE_BYTES_MAX, Create, Delete, Operation, Set
from penstock.errors import MetadataError

ROOT = "/"
PATH_CHARS_MAX = 4096
# ZooKeeper's own limit is 1,048,575 (jute.maxbuffer); over it, the server drops the connection without a word.
FRAME_BYTES_MAX = 1_040_000
# What an operation takes besides its path and value: headers, lengths, version or access list, and the root.
ROOT_BYTES_MAX = 64
_OPERATION_BYTES = 48 + ROOT_BYTES_MAX


def check_path(path: str) -> str:
    """The path itself; MetadataError if it is none. "/" is one."""
    if path == ROOT:
        return path
    if len(path) > PATH_CHARS_MAX:
        raise MetadataError(f"a path of {len(path)} characters", f"at most {PATH_CHARS_MAX} are taken")
    first, *parts = path.split("/")
    if first or not parts or any(part in ("", ".", "..") for part in parts):
        raise MetadataError(
            f"{path!r} is no path of an entry", 'write it as "/a/b": absolute, without empty parts and dots'
        )
    if not all(_is_allowed(char) for char in path):
        raise MetadataError(f"{path!r} has characters that no path may have", "use printable ones")
    return path


def check_entry_path(path: str) -> str:
    """As `check_path`, for what is made, changed or deleted: the root is always there and has no value."""
    if check_path(path) == ROOT:
        raise MetadataError("the root is no entry of its own", "name an entry below it")
    return path


def check_value(path: str, value: bytes) -> bytes:
    if len(value) > VALUE_BYTES_MAX:
        raise MetadataError(
            f"a value of {len(value)} bytes for {path}",
            f"at most {VALUE_BYTES_MAX} are taken: keep large things elsewhere, and here where they are",
        )
    return value


def check_operations(operations: Sequence[Operation]) -> None:
    """Each path and value, all of them together (a transaction is one frame), and that no entry is made below one
    that the same transaction deletes: its parents are made beforehand, which would not help."""
    total = frame = 0
    deleted: set[str] = set()
    for operation in operations:
        path = check_entry_path(operation.path)
        frame += len(path.encode()) + _OPERATION_BYTES
        if isinstance(operation, Create | Set):
            total += len(check_value(path, operation.value))
        if isinstance(operation, Delete):
            deleted.add(path)
        elif isinstance(operation, Create):
            deleted.discard(path)
            if not deleted.isdisjoint(parents_of(path)):
                raise MetadataError(
                    f"{path} is to be made below an entry that the same transaction deletes", "make two of it"
                )
    if total > VALUE_BYTES_MAX:
        raise MetadataError(
            f"a transaction with {total} bytes of values",
            f"at most {VALUE_BYTES_MAX} are taken: make several",
        )
    if total + frame > FRAME_BYTES_MAX:
        raise MetadataError(
            f"a transaction of {len(operations)} operations, {total + frame} bytes in all",
            f"at most {FRAME_BYTES_MAX} are taken: make several",
        )


def parent_of(path: str) -> str:
    return path[: path.rindex("/")] or ROOT


def name_of(path: str) -> str:
    return path[path.rindex("/") + 1 :]


def parents_of(path: str) -> Iterator[str]:
    """From the top down, without the root: `/a`, `/a/b` for `/a/b/c`."""
    end = path.find("/", 1)
    while end != -1:
        yield path[:end]
        end = path.find("/", end + 1)


def join(root: str, path: str) -> str:
    """The path below another root: `/penstock` and `/a` are `/penstock/a`."""
    if path == ROOT:
        return root
    return path if root == ROOT else root + path


def _is_allowed(char: str) -> bool:
    code = ord(char)
    # ZooKeeper's own ranges: control characters, surrogates, private use, and the last of each plane it knows.
    return not (code <= 0x1F or 0x7F <= code <= 0x9F or 0xD800 <= code <= 0xF8FF or 0xFFF0 <= code <= 0xFFFF)
