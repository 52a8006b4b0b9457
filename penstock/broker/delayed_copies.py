"""A message that has waited in a topic of the broker's, made ready for the topic it was sent to.

Body, flag, born time and host, tries and properties stay as they were; REAL_TOPIC and REAL_QID say where it goes.
Used by the delay levels and by timers.
"""

from __future__ import annotations

from penstock._hot.records import AppendRequest
from penstock.broker import property_text as text
from penstock.broker.stored_records import StoredRecord
from penstock.broker.writing import MessageWriter
from penstock.errors import CodecError
from penstock.message.properties import PROPERTIES_SIZE_MAX
from penstock.store.limits import QUEUE_ID_MAX


def real_place(record: StoredRecord) -> tuple[str, int]:
    """Topic and queue that a message was sent to. Raises CodecError if it does not say."""
    properties = record.message.properties
    topic, number = properties.get(text.REAL_TOPIC, ""), properties.get(text.REAL_QUEUE_ID, "")
    if not number.isascii() or not number.isdigit() or int(number) > QUEUE_ID_MAX:
        raise CodecError(f"{number[:40]!r} is no queue")
    return topic, int(number)


def copy_of(
    record: StoredRecord, writer: MessageWriter, topic: str, queue_id: int, put: dict[str, str]
) -> AppendRequest:
    """The message for a queue, with some more properties; without those where they do not fit: they tell, they are
    not what was sent."""
    message = record.message
    found = text.decode(record.properties)
    stored = text.changed(found, dict(message.properties), (text.SEAL,), put).encode()
    if len(stored) > PROPERTIES_SIZE_MAX:
        stored = text.encode(text.changed(found, dict(message.properties), (text.SEAL,), {}))
    return AppendRequest(
        writer.queue(topic, queue_id),
        message.body,
        stored,
        message.born_timestamp,
        message.born_host.encode(),
        message.flag,
        message.sys_flag,
        message.reconsume_times,
    )
