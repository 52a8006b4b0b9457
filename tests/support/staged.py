"""Staged messages for tests: items, and the three requests over a socket."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.protocol.bodies.staged import encode_head, encode_item
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.headers import PublishStagedRequestHeader, StageMessagesRequestHeader
from tests.support.running_broker import BORN, Bench, Client, properties

TOPICS = (("T", 4),)


def item(number: int, target: int = 0, *, size: int = 0, level: int = 0, **props: str) -> bytes:
    """A message that no other number makes."""
    text = properties(**{"UNIQ_KEY": f"U{number}", "KEYS": f"k{number}", **props})
    return encode_item(target, body_of(number, size), text.encode(), level=level)


def body_of(number: int, size: int = 0) -> bytes:
    return b"row %d " % number + b"x" * size


def request_body(items: Iterable[bytes], topics: Sequence[tuple[str, int]] = TOPICS) -> bytes:
    return encode_head(topics) + b"".join(items)


async def stage(
    client: Client, items: Iterable[bytes], topics: Sequence[tuple[str, int]] = TOPICS
) -> Command:
    header = StageMessagesRequestHeader(producer_group="sink", born_timestamp=BORN)
    return await client.call(RequestCode.STAGE_MESSAGES, header.encode(), request_body(items, topics))


async def staged(client: Client, items: Iterable[bytes], topics: Sequence[tuple[str, int]] = TOPICS) -> str:
    """The handle of messages that must be taken."""
    answer = await stage(client, items, topics)
    assert answer.code == 0, answer.remark
    return answer.fields["handle"]


async def publish(client: Client, query: str, batch: int, handles: Iterable[str]) -> Command:
    header = PublishStagedRequestHeader(query_id=query, batch_id=batch)
    return await client.call(RequestCode.PUBLISH_STAGED, header.encode(), "\n".join(handles).encode())


async def status(client: Client, query: str) -> dict[str, str]:
    answer = await client.call(RequestCode.STAGED_STATUS, {"queryId": query})
    assert answer.code == 0, answer.remark
    return answer.fields


def shown(bench: Bench, topic: str = "T", queues: int = 4) -> list[bytes]:
    """Bodies that readers see, queue by queue."""
    store = bench.broker.store
    return [m.body for queue in range(queues) for m in store.read(topic, queue, 0, 100_000)]
