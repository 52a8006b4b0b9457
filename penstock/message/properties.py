"""Properties as text: `name 0x01 value 0x02`, repeated.

The reader is as forgiving as RocketMQ's: it drops parts that are no pair, takes the last of equal names and
does not need the final 0x02. The writer is strict, because what it wrote must read back the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.errors import CodecError, PropertiesTooLargeError

NAME_END = "\x01"
PAIR_END = "\x02"
PROPERTIES_SIZE_MAX = 32767
_PAIR_END = PAIR_END.encode()


class PropertyName:
    """Names with a meaning to the store or the broker."""

    KEYS = "KEYS"
    TAGS = "TAGS"
    WAIT = "WAIT"
    DELAY = "DELAY"
    UNIQ_KEY = "UNIQ_KEY"
    REAL_TOPIC = "REAL_TOPIC"
    REAL_QUEUE_ID = "REAL_QID"
    SEAL = "__CRC32#"
    TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
    TIMER_DELAY_MS = "TIMER_DELAY_MS"
    TIMER_DELIVER_MS = "TIMER_DELIVER_MS"


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Text of the properties; refuses what could not be read back."""
    parts = []
    for name, value in properties.items():
        if not name or not value:
            raise CodecError(f"property {name!r} has an empty name or value", "leave it out instead")
        if NAME_END in name or PAIR_END in name or NAME_END in value or PAIR_END in value:
            raise CodecError(f"property {name!r} contains 0x01 or 0x02, which separate properties")
        parts.append(f"{name}{NAME_END}{value}{PAIR_END}")
    try:
        data = "".join(parts).encode()
    except UnicodeEncodeError as error:
        raise CodecError(f"properties are not text: {error}") from error
    if len(data) > PROPERTIES_SIZE_MAX:
        raise PropertiesTooLargeError(
            f"properties take {len(data)} bytes, at most {PROPERTIES_SIZE_MAX} fit a record",
            "put large values into the body",
        )
    return data


def decode_properties(data: bytes | memoryview) -> dict[str, str]:
    """Pairs of the text, in its order."""
    properties: dict[str, str] = {}
    for part in bytes(data).decode("utf-8", "replace").split(PAIR_END):
        name, separator, value = part.partition(NAME_END)
        if separator and name and value:
            properties[name] = value
    return properties


def property_keys(names: Iterable[str]) -> tuple[tuple[str, bytes], ...]:
    """Names as `pick_properties` looks for them."""
    return tuple((name, f"{PAIR_END}{name}{NAME_END}".encode()) for name in names)


def pick_properties(data: bytes, keys: Iterable[tuple[str, bytes]]) -> dict[str, str]:
    """What `decode_properties` has under some names, without reading the others."""
    text = _PAIR_END + data
    found = {}
    for name, key in keys:
        at = text.rfind(key)
        while at >= 0:
            start = at + len(key)
            end = text.find(_PAIR_END, start)
            value = text[start:] if end < 0 else text[start:end]
            if value:
                found[name] = value.decode("utf-8", "replace")
                break
            at = text.rfind(key, 0, at)
    return found
