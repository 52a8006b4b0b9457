"""Messages: what a producer hands over, what a store keeps, and the bytes in between."""

from penstock.message.address import HostAddress, format_message_id, parse_message_id
from penstock.message.message import Message, StoredMessage, SystemFlag, TransactionKind
from penstock.message.properties import (
    PropertyName,
    decode_properties,
    encode_properties,
    pick_properties,
    property_keys,
)
from penstock.message.record import decode_record, encode_record, property_bytes

__all__ = [
    "HostAddress",
    "Message",
    "PropertyName",
    "StoredMessage",
    "SystemFlag",
    "TransactionKind",
    "decode_properties",
    "decode_record",
    "encode_properties",
    "encode_record",
    "format_message_id",
    "parse_message_id",
    "pick_properties",
    "property_bytes",
    "property_keys",
]
