"""The options of a write, validated once: what a user may write behind `df.write.format("penstock").option(...)`.

Names are case-insensitive, as everywhere in Spark; what is unknown or wrong raises OptionError with what to write
instead. docs/spark/sink.md has the same table with examples. Rule: plain values that can be pickled; the driver makes
them and executors read them. No Spark, no network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from penstock.client.access import FROM_ENVIRONMENT, Access
from penstock.client.addresses import parse_name_servers
from penstock.errors import OptionError
from penstock.spark.access_options import NAMES as ACCESS_NAMES
from penstock.spark.access_options import take_access
from penstock.spark.options import near_names

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")
_WRITE_ID = re.compile(r"[!-~]{1,200}")
# Options of the writer around the sink, which Spark hands on with the sink's own.
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode", "provider", "serialization.format"})


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """A field is an option; `_FORMS` has how it is written, `access_options` those that become `access`."""

    # Addresses of name servers, `host:port` with `;` between them.
    nameserver: tuple[str, ...] = ()
    # Topic of all rows; without it a column `topic` says it.
    topic: str = ""
    # exactly-once, or at-least-once for brokers that cannot stage messages: RocketMQ's.
    delivery: str = EXACTLY_ONCE
    # Batch jobs: a name for what is written. Written under the same name again, nothing is added.
    write_id: str = ""
    # Batch jobs that write under one name in several parts: the number of this part. Parts are written in rising
    # order: the last one again adds nothing, a lower one is refused.
    batch_id: int = 0
    # Batch jobs: publish nothing if there are fewer or more rows than these; 0: any number.
    rows_min: int = 0
    rows_max: int = 0
    # Name of the broker that all rows go to; chosen by the query where it is not given.
    broker: str = ""
    # About so many bytes of messages in one request.
    batch_bytes: int = 1 << 20
    # How long a broker may be out of reach before a task or a commit fails, in milliseconds.
    retry_ms: int = 120_000
    # Who writes, and over TLS or not.
    access: Access = FROM_ENVIRONMENT

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """From texts; OptionError says what is wrong."""
        access, others = take_access(options)
        given: dict[str, Any] = {"access": access}
        for name, text in others.items():
            lower = name.lower()
            if lower in _SPARKS_OWN or lower.startswith("spark."):
                continue
            known = _BY_LOWER.get(lower)
            if known is None:
                known_names = (*NAMES, *ACCESS_NAMES)
                near = near_names(name, known_names)
                hint = f"did you mean {near}" if near else f"options are: {', '.join(known_names)}"
                raise OptionError(f"there is no option {name!r} for writing", hint)
            field, read = known
            given[field] = read(name, str(text).strip())
        made = cls(**given)
        if not made.nameserver:
            raise OptionError("no nameserver is given", 'write .option("nameserver", "host:9876")')
        if made.batch_id and not made.write_id:
            raise OptionError("batchId needs a writeId", "name what is written in parts with writeId")
        if made.delivery == AT_LEAST_ONCE and (
            made.write_id or made.broker or made.rows_min or made.rows_max
        ):
            raise OptionError(
                "writeId, broker, rowsMin and rowsMax mean nothing with delivery=at-least-once",
                "leave out one or the other",
            )
        return made


def _name_servers(name: str, text: str) -> tuple[str, ...]:
    try:
        return parse_name_servers(text)
    except OptionError as error:
        raise OptionError(f"{name}: {error.message}", error.hint) from error


def _topic(name: str, text: str) -> str:
    if not _TOPIC.fullmatch(text):
        raise OptionError(
            f"{name}: invalid topic name {text[:80]!r}",
            "use 1 to 127 letters, digits and the characters % | _ -",
        )
    return text


def _delivery(name: str, text: str) -> str:
    if text.lower() not in (EXACTLY_ONCE, AT_LEAST_ONCE):
        raise OptionError(f"{name} is {text[:40]!r}", f"use {EXACTLY_ONCE} or {AT_LEAST_ONCE}")
    return text.lower()


def _write_id(name: str, text: str) -> str:
    if not _WRITE_ID.fullmatch(text):
        raise OptionError(
            f"{name} is {text[:80]!r}", "use 1 to 200 printable ASCII characters without blanks"
        )
    return text


def _text(name: str, text: str) -> str:
    if not text:
        raise OptionError(f"{name} is empty", "leave it out, or give it a value")
    return text


def _number(low: int, high: int) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        if not (text.isascii() and text.isdigit()) or len(text) > 12 or not low <= int(text) <= high:
            raise OptionError(f"{name} is {text[:40]!r}", f"use a whole number from {low} to {high}")
        return int(text)

    return read


_FORMS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "nameserver": ("nameserver", _name_servers),
    "topic": ("topic", _topic),
    "delivery": ("delivery", _delivery),
    "write_id": ("writeId", _write_id),
    "batch_id": ("batchId", _number(0, 10**11)),
    "rows_min": ("rowsMin", _number(0, 10**11)),
    "rows_max": ("rowsMax", _number(0, 10**11)),
    "broker": ("broker", _text),
    "batch_bytes": ("batchBytes", _number(4096, 16 << 20)),
    "retry_ms": ("retryMs", _number(0, 86_400_000)),
}
NAMES = tuple(name for name, _ in _FORMS.values())
_BY_LOWER = {name.lower(): (field, read) for field, (name, read) in _FORMS.items()}
assert set(_FORMS) | {"access"} == {item.name for item in fields(WriteOptions)}
