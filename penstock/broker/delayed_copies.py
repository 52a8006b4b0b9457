"""A message that has waited in a topic of the broker's, made ready for the topic it was sent to.

Body, flag, born time and host, tries and properties stay as they were; REAL_TOPIC and REAL_QID say where it goes.
Timers make theirs in `timer_copies.py`: there are more of them.
"""

from __future__ import annotations

from penstock._hot.records import AppendRequest
from penstock.broker import property_text as text
from penstock.broker.record_gate import StoredRecord
from penstock.broker.topics import may_be_delivered_to
from penstock.broker.writing import MessageWriter
from penstock.errors import CodecError
from penstock.store.limits import QUEUE_ID_MAX


def queue_number(number: str) -> int:
    """The queue that REAL_QID names. Raises CodecError if it is none."""
    if not number.isascii() or not number.isdigit() or int(number) > QUEUE_ID_MAX:
        raise CodecError(f"{number[:40]!r} is no queue")
    return int(number)


def copy_of(record: StoredRecord, writer: MessageWriter) -> AppendRequest:
    """The message made ready for the queue it was sent to."""
    message = record.message
    topic = message.properties.get(text.REAL_TOPIC, "")
    if not may_be_delivered_to(topic):
        raise CodecError(f"REAL_TOPIC is {topic[:80]!r}, which only the broker writes to")
    queue_id = queue_number(message.properties.get(text.REAL_QUEUE_ID, ""))
    properties = text.decode(record.properties)
    return AppendRequest(
        writer.queue(topic, queue_id),
        message.body,
        text.encode(text.changed(properties, dict(message.properties), (text.SEAL,), {})),
        message.born_timestamp,
        message.born_host.encode(),
        message.flag,
        message.sys_flag,
        message.reconsume_times,
    )
