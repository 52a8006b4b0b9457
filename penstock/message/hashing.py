"""Java's string hash, by which tags are filtered and keys are found."""

from __future__ import annotations

from penstock._hot.bits import java_hash


def java_string_hash(text: str) -> int:
    """`String.hashCode()`: 31-based over UTF-16 code units, as a signed 32-bit number."""
    data = text.encode()
    return java_hash(data, 0, len(data), 0)
