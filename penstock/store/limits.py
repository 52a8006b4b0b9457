"""What a message must be to be stored; everything that can be wrong with one is found here."""

from __future__ import annotations

from penstock._hot.layout import SEAL_SIZE
from penstock.errors import MessageError, MessageTooLargeError, PropertiesTooLargeError
from penstock.message import Message, encode_properties
from penstock.message.properties import PROPERTIES_SIZE_MAX, PropertyName
from penstock.store.layout import check_topic
from penstock.store.options import StoreOptions

QUEUE_ID_MAX = (1 << 31) - 1


def check_place(topic: str, queue_id: int) -> None:
    """Refuse a topic or a queue that cannot be."""
    check_topic(topic)
    if not 0 <= queue_id <= QUEUE_ID_MAX:
        raise MessageError(f"queue id {queue_id} is outside 0..{QUEUE_ID_MAX}")


def check_message(message: Message, queue_id: int, options: StoreOptions) -> bytes:
    """The encoded properties of a message that may be stored; raises MessageError or CodecError for any other."""
    check_place(message.topic, queue_id)
    if len(message.body) > options.max_message_size_bytes:
        raise MessageTooLargeError(
            f"body has {len(message.body)} bytes, the limit is {options.max_message_size_bytes}",
            "send it in parts or raise max_message_size_bytes",
        )
    properties = message.properties
    if PropertyName.SEAL in properties:  # ours to write, never a client's
        properties = {name: value for name, value in properties.items() if name != PropertyName.SEAL}
    encoded = encode_properties(properties)
    sealed = options.seal_records or b"\0" in encoded
    if sealed and len(encoded) + SEAL_SIZE > PROPERTIES_SIZE_MAX:
        raise PropertiesTooLargeError(
            f"properties take {len(encoded)} bytes, a sealed record has room for "
            f"{PROPERTIES_SIZE_MAX - SEAL_SIZE}",
            "put large values into the body",
        )
    return encoded


def check_batch(batch: bytes, size_max: int) -> None:
    """Refuse a batch over the limit."""
    if len(batch) > size_max:
        raise MessageTooLargeError(
            f"batch has {len(batch)} bytes, the limit is {size_max}", "send smaller batches"
        )
