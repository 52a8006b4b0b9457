"""Dead letters in a file: JSON lines, or Parquet where pyarrow is installed.

Rule: a file appears under its name when all of it is written; before that it has `.part` behind it, which a run
that was interrupted leaves behind and the next one replaces.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from penstock.cli.dlq_tables import in_parts, letter_json
from penstock.errors import CodecError, OptionError, install_hint

if TYPE_CHECKING:
    from penstock.client.dead_letters import DeadLetter

ROWS_AT_ONCE = 1_000


def exported(letters: Iterable[DeadLetter], path: str, form: str, progress: Callable[[int], None]) -> int:
    """Write them; how many there were."""
    counted = _counted(letters, progress)
    if form == "parquet":
        if path == "-":
            raise OptionError("Parquet does not go to standard output", "name a file")
        return _whole(path, lambda part: _write_parquet(counted, part))
    if path == "-":
        count = _write_lines(counted, sys.stdout)
        sys.stdout.flush()
        return count

    def write(part: str) -> int:
        with open(part, "w", encoding="ascii") as file:
            count = _write_lines(counted, file)
            file.flush()
            os.fsync(file.fileno())
            return count

    return _whole(path, write)


def _whole(path: str, write: Callable[[str], int]) -> int:
    part = f"{path}.part"
    try:
        count = write(part)
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise
    return count


def _counted(letters: Iterable[DeadLetter], progress: Callable[[int], None]) -> Iterator[DeadLetter]:
    for number, letter in enumerate(letters, 1):
        yield letter
        progress(number)


def _write_lines(letters: Iterable[DeadLetter], file: IO[str]) -> int:
    count = 0
    for letter in letters:
        file.write(json.dumps(letter_json(letter)) + "\n")
        count += 1
    return count


def _write_parquet(letters: Iterable[DeadLetter], path: str) -> int:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise OptionError(
            "Parquet needs pyarrow", f"{install_hint('spark')}; or use --format jsonl"
        ) from error
    moment = pa.timestamp("ms", tz="UTC")
    schema = pa.schema(
        [
            ("group", pa.string()),
            ("letter_id", pa.string()),
            ("message_id", pa.string()),
            ("origin_topic", pa.string()),
            ("origin_id", pa.string()),
            ("origin", pa.string()),
            ("reason", pa.string()),
            ("reason_kind", pa.string()),
            ("tries", pa.int32()),
            ("tag", pa.string()),
            ("keys", pa.list_(pa.string())),
            ("properties", pa.map_(pa.string(), pa.string())),
            ("born", moment),
            ("first_failed", moment),
            ("died", moment),
            ("redriven", moment),
            ("redriven_topic", pa.string()),
            ("body", pa.binary()),
        ]
    )
    count = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for part in in_parts(letters, ROWS_AT_ONCE):
            rows = [_row(letter) for letter in part]
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            count += len(rows)
    return count


def _row(letter: DeadLetter) -> dict[str, Any]:
    message, mark = letter.message, letter.redriven
    try:
        body = message.body
    except CodecError:
        body = message.stored.body  # packed in a way that cannot be undone: as it is stored
    return {
        "group": letter.group,
        "letter_id": letter.letter_id,
        "message_id": message.msg_id,
        "origin_topic": letter.origin_topic,
        "origin_id": letter.origin_id,
        "origin": letter.origin,
        "reason": letter.reason,
        "reason_kind": letter.kind,
        "tries": message.tries,
        "tag": message.tag,
        "keys": message.keys,
        "properties": list(message.properties.items()),
        "born": message.born_timestamp,
        "first_failed": letter.first_failed_ms or None,
        "died": letter.died_ms,
        "redriven": mark.time_ms if mark is not None else None,
        "redriven_topic": mark.topic if mark is not None else None,
        "body": body,
    }
