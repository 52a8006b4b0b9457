"""What handlers share: reading request bodies, making large answers, waiting until a change is on disk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from penstock.broker.stored_table import StoredTable
from penstock.errors import CodecError, RequestError
from penstock.metadata.fastjson import JsonObject, is_within
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command
from penstock.remoting import Connection

T = TypeVar("T")
# Unknown members of a topic or a group are kept for newer versions, but not without end.
EXTRA_SIZE_MAX = 4_096
# How deep a topic or a group may be nested: far less than a document that holds tables of them.
CONFIG_DEPTH_MAX = 8
# Entries of a table over which its JSON is made in a thread, so that it does not hold up the loop.
ASIDE_FROM = 500


def read_body(command: Command, decode: Callable[[bytes | bytearray], T]) -> T:
    """The body of a request. Raises RequestError 1, as RocketMQ answers a body that it cannot read."""
    try:
        return decode(command.body)
    except CodecError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, error.message, error.hint) from error


def answer_table(
    connection: Connection, command: Command, size: int, prepare: Callable[[], Callable[[], bytes]]
) -> Command | Awaitable[Command]:
    """The answer with a whole table of so many entries. `prepare` copies the table and returns what encodes the copy;
    for a large one not before a thread is free to do that, so that requests which wait keep no copies."""
    if size < ASIDE_FROM:
        return command.answer(body=prepare()())
    return _answer_aside(connection, command, prepare)


async def _answer_aside(
    connection: Connection, command: Command, prepare: Callable[[], Callable[[], bytes]]
) -> Command:
    return command.answer(body=await connection.in_thread(prepare))


class _Saved(Protocol):
    stored: StoredTable

    async def save(self) -> bool: ...


async def saved(table: _Saved, command: Command) -> Command:
    """The answer to a change: success once it is on disk, and with the replicas in sync where there are any.

    The change holds in any case and is saved as soon as that works; but who asked must know that it could be
    forgotten.
    """
    if await table.save():
        return command.answer()
    raise RequestError(
        ResponseCode.SYSTEM_ERROR,
        f"the change holds, but could not be saved: {table.stored.failure}",
        "it is tried again; look at the disk of the broker",
    )


def check_extra(name: str, extra: object, config: JsonObject) -> None:
    """Refuse a topic or group that brings more unknown members than any version has, or that is nested so deep that
    the file, a registration or an answer with all of them could not be read any more."""
    if len(repr(extra)) > EXTRA_SIZE_MAX:
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"{name[:80]!r} has too many unknown members")
    if not is_within(config, CONFIG_DEPTH_MAX):
        raise RequestError(
            ResponseCode.INVALID_PARAMETER, f"{name[:80]!r} is nested deeper than {CONFIG_DEPTH_MAX} levels"
        )
