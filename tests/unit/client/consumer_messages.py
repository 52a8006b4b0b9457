"""Messages for tests of consumers: stored records made by hand."""

import zlib

from penstock.client.received import ReceivedMessage
from penstock.message import HostAddress, StoredMessage, encode_record
from penstock.protocol.bodies import MessageQueue

HOST = HostAddress("127.0.0.1", 10911)
QUEUE = MessageQueue("T", "b", 0)


def stored(
    offset: int = 0,
    body: bytes = b"hi",
    *,
    topic: str = "T",
    properties: dict[str, str] | None = None,
    sys_flag: int = 0,
    tries: int = 0,
    queue_id: int = 0,
) -> StoredMessage:
    return StoredMessage(
        topic=topic,
        body=body,
        properties=properties or {},
        queue_id=queue_id,
        queue_offset=offset,
        physical_offset=1000 + offset * 100,
        size=100,
        body_crc=zlib.crc32(body) & 0x7FFFFFFF,
        flag=0,
        sys_flag=sys_flag,
        born_timestamp=1_700_000_000_000,
        born_host=HOST,
        store_timestamp=1_700_000_000_001,
        store_host=HOST,
        reconsume_times=tries,
        prepared_transaction_offset=0,
    )


def received(offset: int = 0, body: bytes = b"hi", **parts: object) -> ReceivedMessage:
    return ReceivedMessage.of(stored(offset, body, **parts), QUEUE)  # type: ignore[arg-type]


def records(*messages: StoredMessage) -> bytes:
    return b"".join(map(encode_record, messages))
