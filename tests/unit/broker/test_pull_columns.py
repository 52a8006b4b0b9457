"""Pulls that ask for columns: who gets them, who gets records, and who is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.message.column_answers import NAMES, unpack
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from tests.support.running_broker import records, run, running, send_fields
from tests.unit.broker.test_pull import bodies, fill

SCAN = {"maxMsgNums": 1_000, "maxMsgBytes": 1 << 20, "penstockPull": "scan"}


def values(answer: Command, count: int) -> list[bytes]:
    """Of the one column `body`."""
    rows, found, _ = unpack(("body",), answer.body, count)
    ends, content = found["body"][1][0].cast("i"), bytes(found["body"][2][0])
    return [content[ends[row] : ends[row + 1]] for row in range(rows)]


def test_a_scan_gets_columns_and_moves_on_as_with_records(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench, 40)
            plain = await bench.client.pull(offset=3, **SCAN)
            answer = await bench.client.pull(offset=3, columns="body", **SCAN)
            assert values(answer, 37) == bodies(plain) == [b"%d" % n for n in range(3, 40)]
            assert answer.fields.pop("columns") == "body"
            assert answer.fields.pop("storedBytes") == str(len(plain.body))
            assert (answer.code, answer.remark, answer.fields) == (0, plain.remark, plain.fields)
            for names in (sorted(NAMES), sorted(NAMES, reverse=True)):
                whole = await bench.client.pull(columns=",".join(names), **SCAN)
                assert unpack(names, whole.body, 40).rows == 40
                assert len(whole.fields) == len(plain.fields) + 2
            # The same name twice is one column.
            assert (await bench.client.pull(columns="body,body", **SCAN)).fields["columns"] == "body"

    run(scenario)


def test_limits_count_whole_records(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, scan_bytes_max=300 * 1024, pull_bytes_memory_max=1024) as bench:
            for _ in range(30):
                await bench.client.send("T", b"x" * 30_000)
            plain = await bench.client.pull(**SCAN)
            answer = await bench.client.pull(columns="queue_id", **SCAN)
            assert answer.fields["nextBeginOffset"] == plain.fields["nextBeginOffset"]
            assert unpack(("queue_id",), answer.body, 30).rows == len(records(plain.body)) < 30
            assert len(answer.body) < 1_000

    run(scenario)


def test_others_get_records(tmp_path: Path) -> None:
    """Consumers, whoever filters, and whoever would need a packed body."""

    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench, 40, tags="AB")
            for pull in (
                {"columns": "body", "maxMsgNums": 40},
                {"columns": "body", "subscription": "A", **SCAN},
                {"columns": "body", "subscription": "TAGS = 'A'", "expressionType": "SQL92", **SCAN},
                {"columns": "", **SCAN},
            ):
                answer = await bench.client.pull(**pull)
                assert "columns" not in answer.fields
                if not answer.code:
                    assert bodies(answer)[:2] in ([b"0", b"1"], [b"0", b"2"])
            fields = send_fields(f=1)  # as clients mark it
            assert (await bench.client.call(RequestCode.SEND_MESSAGE_V2, fields, b"packed")).code == 0
            answer = await bench.client.pull(columns="body", **SCAN)
            assert "columns" not in answer.fields
            assert len(records(answer.body)) == 41
            assert (await bench.client.pull(columns="size", **SCAN)).fields["columns"] == "size"

    run(scenario)


def test_where_there_is_nothing_there_are_no_columns(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench, 3)
            for offset in (3, 4, 1 << 40, -1):
                plain = await bench.client.pull(offset=offset, **SCAN)
                answer = await bench.client.pull(offset=offset, columns="body", **SCAN)
                assert (answer.code, answer.fields, answer.body) == (plain.code, plain.fields, plain.body)
                assert answer.code != 0

    run(scenario)


@pytest.mark.abuse("A1")
@pytest.mark.parametrize("columns", ["nobody", "body,", ",", "body;queue_id", "BODY", "keys", "x" * 10_000])
def test_who_asks_for_other_columns_gets_records(tmp_path: Path, columns: str) -> None:
    """As from a broker that knows of none: a newer client may know of more."""

    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench, 3)
            answer = await bench.client.pull(columns=columns, **SCAN)
            assert bodies(answer) == [b"0", b"1", b"2"]
            assert "columns" not in answer.fields

    run(scenario)
