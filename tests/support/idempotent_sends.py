"""Sends with a producer name and a sequence number, and the bodies that a broker stored."""

from __future__ import annotations

from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from tests.support.running_broker import (
    Bench,
    Client,
    batch_item,
    properties,
    records,
    send_fields,
)

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE


async def send(
    client: Client,
    sequence: int,
    body: bytes = b"hello",
    queue: int = 0,
    *,
    topic: str = "T",
    producer: str = "p",
    props: str = "",
    **more: object,
) -> Command:
    text = props or properties(UNIQ_KEY=f"id{sequence}")
    fields = send_fields(topic, queue, text, penstockProducer=producer, penstockSequence=sequence, **more)
    return await client.call(SEND, fields, body)


async def send_batch(client: Client, first: int, bodies: list[bytes], queue: int = 0) -> Command:
    items = [batch_item(body, properties(UNIQ_KEY=f"u{first + n}")) for n, body in enumerate(bodies)]
    fields = send_fields(
        "T", queue, properties(UNIQ_KEY=f"u{first}"), m="true", penstockProducer="p", penstockSequence=first
    )
    return await client.call(BATCH, fields, b"".join(items))


async def bodies(bench: Bench, queue: int = 0, topic: str = "T") -> list[bytes]:
    found: list[bytes] = []
    while True:
        some = records((await bench.client.pull(topic, queue, len(found))).body)
        if not some:
            return found
        found += [message.body for message in some]
