"""Stored records become Arrow batches: what live reads and reads of a store directory share.

A decoder takes records as a pull answers them, or queue entries with the segment they lead into, and gives record
batches of at most so many rows and bytes. Rows that do not fill a batch wait for what comes next; `finish` gives
the last ones. Answers in columns become batches as they are, cut to about that size. A record that fails its
checksum, or whose body cannot be unpacked, is no row: it is in `damaged`.

Rule: no object per row. The compiled `_hot/columns.py` fills the buffers, Arrow gets them as they are. Runs in an
executor's task, in one thread. Knows neither Spark nor a network, and never changes what it is fed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock._hot.columns import Columns
from penstock._hot.layout import NO_RECORD, ROW_REASONS
from penstock._hot.mapped import MappedBytes
from penstock.errors import CodecError, MessageTooLargeError, OptionError
from penstock.message import HostAddress
from penstock.message.column_answers import unpack
from penstock.spark.schema import COLUMNS, MAY_BE_NULL, PROPERTY_VALUES, check_columns
from penstock.spark.settling import settle

ROWS_MAX = 1 << 20
# The ends of values have 32 bits, and bad bytes in text grow to three.
SIZE_MAX = 256 << 20
UNPACKED_MAX = 4 << 20

_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


@dataclass(frozen=True, slots=True)
class Damage:
    """Queue offsets that gave no row, from `queue_offset` to `last_offset`, and why."""

    queue_offset: int
    reason: str
    last_offset: int


def arrow_schema(columns: Sequence[str], nullable: Collection[str] = MAY_BE_NULL) -> pa.Schema:
    """What batches of these columns look like; by default the same that Spark makes of `schema.message_schema`."""
    pairs = pa.map_(pa.string(), pa.field("value", pa.string(), PROPERTY_VALUES in nullable))
    types = {**_TYPES, "map<string,string>": pairs}
    return pa.schema([pa.field(name, types[COLUMNS[name]], name in nullable) for name in columns])


class RecordDecoder:
    """See the module's text. `next_offset` says how far the last feed came.

    Feeds are generators: nothing happens until they are iterated, and what is not iterated is not decoded.
    """

    def __init__(
        self,
        columns: Sequence[str],
        *,
        broker: str = "",
        rows: int = 8192,
        size: int = 8 << 20,
        tags: Collection[str] = (),
        key: str = "",
        verify: bool = True,
        unpacked_max: int = UNPACKED_MAX,
        nullable: Collection[str] = MAY_BE_NULL,
    ) -> None:
        if not 1 <= rows <= ROWS_MAX:
            raise OptionError(f"a batch of {rows} rows", f"use 1 to {ROWS_MAX} rows")
        if not 1 <= size <= SIZE_MAX:
            raise OptionError(f"a batch of {size} bytes", f"use 1 to {SIZE_MAX} bytes")
        settle()
        self.columns = check_columns(columns)
        self.schema = arrow_schema(self.columns, nullable)
        self.next_offset = 0
        self._rows, self._size = rows, size
        self._unpacked_max = unpacked_max
        self._columns = Columns(
            self.columns,
            broker.encode(),
            rows,
            size,
            [tag.encode() for tag in tags],
            key.encode(),
            verify,
            self._unpack,
            _host_text,
        )

    # -- feeding ---------------------------------------------------------------------------------------------

    @property
    def broker(self) -> str:
        """Name of the broker that the next feeds come from: one decoder may serve several."""
        return str(self._columns.broker_name, "utf-8")

    @broker.setter
    def broker(self, name: str) -> None:
        self._columns.broker_name = name.encode()

    def feed_run(
        self,
        data: bytes | bytearray | memoryview,
        start: int,
        end: int,
        *,
        topic: bytes | None = None,
        queue_id: int = -1,
        complete: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Records one after the other; only queue offsets in [start, end), in ascending order.

        With a topic or a queue id, a record of another place is damage. `complete`: nobody filtered the run, so an
        offset left out between two records is damage too. If the lengths of a record make no sense the rest of
        the run is given up and `cut_short` is true: ask again from `next_offset` on.
        """
        self.next_offset = start
        if not len(data):
            return
        source, at = MappedBytes(data), 0
        while at < source.size:
            at = self._columns.take_run(source, at, self.next_offset, end, topic or b"", queue_id, complete)
            self.next_offset = self._columns.next_offset
            if self._columns.full:
                yield self._batch()

    def feed_entries(
        self,
        segment: MappedBytes,
        segment_base: int,
        entries: bytes,
        first: int,
        *,
        topic: bytes,
        queue_id: int,
        by_code: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """Records of one queue that entries lead to; `first` is the queue offset of the first entry.

        It ends at the first entry that leads out of the segment: `next_offset` says which. `by_code`: entries
        hold the hashes of tags, which those of RocketMQ's schedule topic do not.
        """
        self.next_offset, at, count = first, 0, len(entries) // 20
        while at < count:
            at = self._columns.take_entries(
                segment, segment_base, entries, at, first, topic, queue_id, by_code
            )
            self.next_offset = first + at
            if not self._columns.full:
                return
            yield self._batch()

    def feed_columns(
        self, data: bytes | bytearray | memoryview, start: int, end: int, names: Sequence[str], topic: str
    ) -> Iterator[pa.RecordBatch]:
        """An answer in columns of these names, for queue offsets [start, end): all that this decoder has but topic
        and broker. Batches are views of it: it must stay as it is. CodecError if it makes no sense."""
        yield from self.finish()
        rows, found, damaged = unpack(names, data, end - start)
        place, lost = start, 0
        for first, last, _ in damaged:
            if not place <= first <= last < end:
                raise CodecError(f"an answer in columns that tells of damage from offset {first} to {last}")
            place, lost = last + 1, lost + last + 1 - first
        if rows + lost != end - start:
            raise CodecError(f"an answer in columns leaves out some of {end - start} messages")
        same = {"topic": topic, "broker": self.broker}
        try:
            arrays = [
                self._array(field, rows, found[field.name])
                if field.name in found
                else pa.repeat(pa.scalar(same[field.name], field.type), rows)
                for field in self.schema
            ]
            whole = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
            whole.validate(full=True)
        except pa.ArrowInvalid as error:
            raise CodecError(f"an answer in columns that is damaged: {error}") from error
        for first, last, why in damaged:
            self._columns.note(first, last, why if why in ROW_REASONS else NO_RECORD)
        self.next_offset = end
        step = min(self._rows, max(1, rows * self._size // max(whole.nbytes, 1)))
        for at in range(0, rows, step):
            yield whole.slice(at, step)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """What is left, if anything; the decoder can be fed again afterwards."""
        if self._columns.rows:
            yield self._batch()

    # -- outcome ---------------------------------------------------------------------------------------------

    @property
    def cut_short(self) -> bool:
        """Whether the last run had to be given up before its end."""
        return bool(self._columns.cut_short)

    @property
    def damaged(self) -> list[Damage]:
        """What gave no row, in the order it was met; `forget_damaged` empties it, as between two queues."""
        return [Damage(first, ROW_REASONS[why], last) for first, last, why in self._columns.damaged]

    def forget_damaged(self) -> None:
        self._columns.damaged = []

    def note_missing(self, offset: int, why: int) -> None:
        """A queue offset that the feeder itself found nothing for; `why` is a reason of `_hot/layout.py`."""
        self._columns.note(offset, offset, why)

    # -- inside ----------------------------------------------------------------------------------------------

    def _unpack(self, body: bytes, flags: int) -> bytes | None:
        # Imported here: most stores hold no packed body, and the clients are much to load for a task.
        from penstock.client.compression import unpack

        try:
            return unpack(body, flags, self._unpacked_max)
        except (CodecError, MessageTooLargeError):
            return None

    def _batch(self) -> pa.RecordBatch:
        rows, found = self._columns.take()
        arrays = [self._array(field, rows, found[field.name]) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, field: pa.Field, rows: int, found: tuple[Any, ...]) -> pa.Array:
        if field.name != "properties":
            return pa.Array.from_buffers(field.type, rows, _buffers(found))
        (_, ends, _), names, values = (_buffers(part) for part in found)
        pairs = names[1].size // 4 - 1
        children = [
            pa.Array.from_buffers(pa.string(), pairs, names),
            pa.Array.from_buffers(pa.string(), pairs, values),
        ]
        pair_type = pa.struct([field.type.key_field, field.type.item_field])
        pair_array = pa.Array.from_buffers(pair_type, pairs, [None], children=children)
        return pa.Array.from_buffers(field.type, rows, [None, ends], children=[pair_array])


def _buffers(parts: tuple[Any, ...]) -> list[Any]:
    """Arrow's view of buffers that `_hot/buffers.py` filled: the part that is used, without a copy."""
    valid, *filled = parts
    buffers = [None if valid is None else pa.py_buffer(valid)]
    for buffer, used in filled:
        buffers.append(pa.py_buffer(memoryview(buffer)[:used]))
    return buffers


def _host_text(host: bytes) -> bytes:
    return str(HostAddress.decode(host)).encode()
