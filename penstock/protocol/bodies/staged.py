"""Messages that are staged: the body of STAGE_MESSAGES (9010), which the broker stores as it came.

    body      head size i32 | head | items
    head      topic 0x01 number of its queues 0x02, repeated
    item      total size i32 | target i32 | delay level i32 | flag i32 | body size i32 | body
              | properties size i16 | properties

An item is a record of a batch (`batch.py`) with a meaning in the two fields that a batch leaves at zero. `target` is
the queue it goes to, where the queues of all topics of the head are counted one after the other, from 0. Every
item has a UNIQ_KEY, and none of the properties that are a broker's to set. Pure functions; the items
themselves are written by `_hot/encode.py` and read by `_hot/staged.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from penstock.errors import CodecError

TopicQueues = tuple[str, int]
HEAD_SIZE_MAX = 64 * 1024
TOPICS_MAX = 1_000
# Of all topics of one head.
QUEUES_MAX = 16_384
_NAME_END, _PAIR_END = "\x01", "\x02"
_ITEM = struct.Struct(">iiiii")  # total size, target, delay level, flag, body size
_ITEM_SIZE_MIN = 22


def encode_head(topics: Sequence[TopicQueues]) -> bytes:
    """What goes before the items."""
    text = "".join(f"{topic}{_NAME_END}{queues}{_PAIR_END}" for topic, queues in topics).encode()
    if (
        len(text) > HEAD_SIZE_MAX
        or len(topics) > TOPICS_MAX
        or sum(count for _, count in topics) > QUEUES_MAX
    ):
        raise CodecError(
            f"one request cannot stage messages of {len(topics)} topics with all their queues",
            f"at most {TOPICS_MAX} topics and {QUEUES_MAX} queues fit",
        )
    return len(text).to_bytes(4, "big") + text


def decode_head(data: bytes | bytearray | memoryview) -> tuple[list[TopicQueues], int]:
    """The topics with their queues, and where the items begin; CodecError for whatever is no head."""
    size = int.from_bytes(data[:4], "big")
    if len(data) < 4 or size > min(HEAD_SIZE_MAX, len(data) - 4):
        raise CodecError("the staged messages have no head, or one that is longer than they are")
    try:
        text = bytes(data[4 : 4 + size]).decode()
    except UnicodeDecodeError as error:
        raise CodecError("the head of the staged messages is no text") from error
    topics: list[TopicQueues] = []
    for part in text.split(_PAIR_END)[:-1]:
        topic, separator, number = part.partition(_NAME_END)
        if not (topic and separator and number.isascii() and number.isdigit() and len(number) <= 5):
            raise CodecError(f"the head of the staged messages has a part that is none: {part[:80]!r}")
        topics.append((topic, int(number)))
    if not 0 < len(topics) <= TOPICS_MAX or text[-1:] != _PAIR_END or len(dict(topics)) < len(topics):
        raise CodecError(
            f"the head of the staged messages has {len(topics)} topics, twice the same, or no end"
        )
    if not all(count for _, count in topics) or sum(count for _, count in topics) > QUEUES_MAX:
        raise CodecError(f"the topics of the staged messages have no queues, or more than {QUEUES_MAX}")
    return topics, 4 + size


def encode_item(target: int, body: bytes, properties: bytes, *, level: int = 0, flag: int = 0) -> bytes:
    """One message, from properties that are encoded already, a UNIQ_KEY among them."""
    if len(properties) > 32767:
        raise CodecError(f"properties of {len(properties)} bytes fit no record", "at most 32767 do")
    size = _ITEM_SIZE_MIN + len(body) + len(properties)
    head = _ITEM.pack(size, target, level, flag, len(body))
    return b"".join((head, body, len(properties).to_bytes(2, "big"), properties))
