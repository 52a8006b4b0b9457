"""Rows into messages: which columns a write may have, and their Arrow buffers into staged items.

    body          binary or string, required            properties   map<string,string>
    topic         string, unless an option says it      delay        whole number: a delay level
    key or keys   string or binary                      queue        whole number
    tags          string

Rules: a column that means nothing here, or of another type, is refused before anything is written. What is wrong
with a row is an error that names row, partition and column. A queue is the row's own, else follows from its key, as
RocketMQ's hash selector does it, else the queues take turns. Properties that a broker sets itself are left out, so
rows that were read from a topic can be written as they are.

Runs in executor tasks; needs pyarrow, no Spark but the schema's types. No Python object per row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock._hot.encode import Column, RowEncoder
from penstock._hot.layout import (
    E_DELAY,
    E_KEYS,
    E_LONG_BODY,
    E_NAME,
    E_NO_BODY,
    E_NO_TOPIC,
    E_PROPERTIES,
    E_QUEUE,
    E_TAGS,
    E_VALUE,
)
from penstock.errors import MessageError, OptionError, PenstockError
from penstock.message.properties import PROPERTIES_SIZE_MAX
from penstock.spark.options import near_names

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_TEXT = ("string", "binary")
_WHOLE = ("tinyint", "smallint", "int", "bigint")
TYPES: dict[str, tuple[str, ...]] = {
    "body": _TEXT,
    "topic": ("string",),
    "key": _TEXT,
    "keys": _TEXT,
    "tags": _TEXT,
    "properties": ("map<string,string>",),
    "delay": _WHOLE,
    "queue": _WHOLE,
}
ITEMS_MAX = 10_000
HEAD_ROOM = 4 + 64 * 1024
_INT32_MAX = 2**31 - 1
# Column, and what is wrong with it.
_REFUSALS = {
    E_NO_BODY: ("body", "is null", "filter such rows out, or write an empty body"),
    E_LONG_BODY: (
        "body",
        "is too large for a message of this broker",
        "put it elsewhere, or raise its limit",
    ),
    E_NO_TOPIC: ("topic", "is null", "give every row a topic, or all of them one with the option topic"),
    E_KEYS: ("keys", "contains byte 1 or 2, which separate properties", "leave them out"),
    E_TAGS: ("tags", "contains byte 1 or 2, which separate properties", "leave them out"),
    E_NAME: ("properties", "has a name that is empty or contains byte 1 or 2", "use another name"),
    E_VALUE: (
        "properties",
        "has a value that is empty or contains byte 1 or 2",
        "use null for properties that a row does not have",
    ),
    E_PROPERTIES: (
        "properties",
        f"takes more than {PROPERTIES_SIZE_MAX} bytes, keys and tags included",
        "put large values into the body",
    ),
    E_QUEUE: ("queue", "is no queue of the topic", "leave it null to have one chosen"),
    E_DELAY: ("delay", "is negative", "use a delay level from 1 on, or null for no delay"),
}


class SinkColumns:
    """Which column of a schema is what; positions, so that names may be written in any case."""

    def __init__(self, schema: StructType, topic: str) -> None:
        self.places: dict[str, int] = {}
        self.names: dict[str, str] = {}
        for place, field in enumerate(schema.fields):
            role = field.name.lower()
            if role not in TYPES:
                near = near_names(field.name, TYPES)
                raise OptionError(
                    f"column {field.name!r} means nothing for a message",
                    f"did you mean {near}" if near else f"select some of: {', '.join(TYPES)}",
                )
            found = field.dataType.simpleString()
            if found not in TYPES[role]:
                raise OptionError(
                    f"column {field.name!r} is {found}", f"cast it to {' or '.join(TYPES[role])}"
                )
            role = "keys" if role == "key" else role
            if role in self.places:
                raise OptionError(
                    f"columns {self.names[role]!r} and {field.name!r} are the same", "write one of them"
                )
            self.places[role] = place
            self.names[role] = field.name
        if "body" not in self.places:
            raise OptionError("there is no column 'body'", "select what to send as body, binary or string")
        if topic and "topic" in self.places:
            raise OptionError(
                f"there are both a column {self.names['topic']!r} and the option topic", "drop one of them"
            )
        if not topic and "topic" not in self.places:
            raise OptionError("nothing says to which topic", 'add .option("topic", ...) or a column topic')


class RowRequests:
    """The rows of one task as staging requests: (topics, items, how many, number of the first row)."""

    def __init__(
        self,
        columns: SinkColumns,
        topic: str,
        queues: Callable[[str], int],
        moment: Callable[[], str],
        *,
        partition: int,
        turn: int,
        batch_bytes: int,
        stage_bytes_max: int,
    ) -> None:
        self._columns = columns
        self._queues = queues
        self._moment = moment
        self._partition = partition
        self._turn = turn
        self._room = stage_bytes_max
        self._batch_bytes = min(batch_bytes, stage_bytes_max)
        self._encoder = RowEncoder(PROPERTIES_SIZE_MAX)
        self._topics: dict[str, int] = {}
        self._bases: list[tuple[int, int]] = []
        # Number of the first row of the batch at hand, and of the first that is in no request yet.
        self.rows = 0
        self.sent = 0
        if topic:
            self._add_topic(topic)

    @property
    def topics(self) -> list[tuple[str, int]]:
        """The head of a request: every topic so far, with its queues."""
        return list(self._topics.items())

    def add(self, batch: pa.RecordBatch) -> Iterator[tuple[list[tuple[str, int]], bytes, int, int]]:
        """Requests that are full; the rest waits for more rows, or for `finish`."""
        encoder = self._encoder
        encoder.load(batch.num_rows, self._load(batch))
        while not encoder.run(self._batch_bytes, ITEMS_MAX):
            if encoder.refusal:
                raise self._refused(encoder.refusal, self.rows + encoder.row)
            if encoder.needs_ids:
                encoder.set_ids(self._moment().encode())
            if encoder.is_full:
                yield self._take()
        self.rows += batch.num_rows

    def finish(self) -> Iterator[tuple[list[tuple[str, int]], bytes, int, int]]:
        """What is left."""
        if self._encoder.items:
            yield self._take()

    def _take(self) -> tuple[list[tuple[str, int]], bytes, int, int]:
        first, count = self.sent, self._encoder.items
        self.sent += count
        return self.topics, self._encoder.take(), count, first

    def error(self, row: int, column: str, what: str, hint: str) -> MessageError:
        """The one way in which a row is blamed."""
        name = self._columns.names.get(column, column)
        return MessageError(f"row {row} of partition {self._partition}, column {name!r}: {what}", hint)

    def _refused(self, why: int, row: int) -> MessageError:
        column, what, hint = _REFUSALS[why]
        return self.error(row, column, what, hint)

    # -- topics ----------------------------------------------------------------------------------------------

    def _add_topic(self, topic: str) -> None:
        base = sum(count for _, count in self._bases)
        count = self._queues(topic)
        self._topics[topic] = count
        self._bases.append((base, count))
        head = 4 + sum(len(name.encode()) + 8 for name in self._topics)
        self._encoder.set_topics(self._bases, self._turn, self._room - head)

    def _topic_numbers(self, array: pa.Array) -> pa.Array:
        """Each row's topic by its number here; new ones are looked up."""
        encoded = array.dictionary_encode()
        numbers = []
        for topic in encoded.dictionary.to_pylist():
            if topic not in self._topics:
                try:
                    self._add_topic(topic)
                except PenstockError as error:
                    row = pc.index(array, topic).as_py()
                    raise self.error(self.rows + row, "topic", str(error), "") from error
            numbers.append(list(self._topics).index(topic))
        return pa.array(numbers, pa.int32()).take(encoded.indices)

    # -- columns ---------------------------------------------------------------------------------------------

    def _load(self, batch: pa.RecordBatch) -> dict[str, Column]:
        found: dict[str, Column] = {}
        for role, place in self._columns.places.items():
            array = batch.column(place)
            if role == "topic":
                found[role] = _numbers(self._topic_numbers(array))
            elif role in ("queue", "delay"):
                found[role] = _numbers(self._whole(role, array))
            elif role == "properties":
                found |= _properties(array)
            else:
                found[role] = _texts(array)
        return found

    def _whole(self, role: str, array: pa.Array) -> pa.Array:
        """As 32-bit numbers; what is larger is no level and no queue."""
        if array.type != pa.int32():
            far = pc.fill_null(pc.greater(pc.abs(array), _INT32_MAX), False)
            if pc.any(far).as_py():
                row = pc.index(far, True).as_py()
                raise self.error(self.rows + row, role, "is far too large", "use a small number")
        return array.cast(pa.int32())


def _bytes(buffer: Any) -> memoryview | None:
    """A buffer's bytes without a sign, as the compiled encoder takes them."""
    return None if buffer is None else memoryview(buffer).cast("B")


def _numbers(array: pa.Array) -> Column:
    valid, data = array.buffers()
    return Column(_bytes(data), None, _bytes(valid) if array.null_count else None, array.offset, len(array))


def _texts(array: pa.Array) -> Column:
    if array.type not in (pa.string(), pa.binary()):  # large, or views: a copy into the plain form
        array = array.cast(pa.binary())
    valid, offsets, data = array.buffers()
    nulls = _bytes(valid) if array.null_count else None
    return Column(_bytes(offsets), _bytes(data) or b"", nulls, array.offset, len(array))


def _properties(array: pa.Array) -> Mapping[str, Column]:
    """A map is a list of pairs: where those of each row begin, and their names and values."""
    valid, offsets = array.buffers()[:2]
    nulls = _bytes(valid) if array.null_count else None
    return {
        "pairs": Column(_bytes(offsets), b"", nulls, array.offset, len(array)),
        "names": _texts(array.keys),
        "values": _texts(array.items),
    }
