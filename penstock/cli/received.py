"""Messages that came over the network, shown as those from a store are, with what only a client knows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.cli.messages import message_json
from penstock.errors import CodecError

if TYPE_CHECKING:
    from penstock.client.received import ReceivedMessage
    from penstock.message import StoredMessage


def unpacked(message: ReceivedMessage) -> StoredMessage:
    """The record with its body as it was sent; one that cannot be unpacked stays as it is stored."""
    try:
        return replace(message.stored, body=message.body)
    except CodecError:
        return message.stored


def received_json(message: ReceivedMessage) -> dict[str, object]:
    """Everything about a message. `message_id` is its producer's; `offset_message_id` says where it lies."""
    return {
        **message_json(unpacked(message)),
        "broker": message.queue.broker_name,
        "message_id": message.msg_id,
        "offset_message_id": message.offset_msg_id,
        "keys": message.keys,
    }
