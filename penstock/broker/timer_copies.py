"""What becomes of a timer message that is due: a copy in its own topic, a copy in the timer topic, or nothing.

    due         REAL_TOPIC, REAL_QID; TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS say when it went to the wheel and left it
    roll        the timer topic again, TIMER_ROLL_TIMES one more
    recalled    nothing
    unreadable  nothing, and it is said so: it never holds up those behind it

Owned by the event loop.
"""

from __future__ import annotations

import logging

from penstock._hot.records import AppendRequest
from penstock.broker import property_text as text
from penstock.broker import timer_times as times
from penstock.broker.delay import FAR
from penstock.broker.delayed_copies import queue_number
from penstock.broker.flow_control import BusyError
from penstock.broker.timer_due import DueMessage, DueMessages
from penstock.broker.timer_records import TimerMessage, timer_message
from penstock.broker.topics import may_be_delivered_to
from penstock.broker.writing import MessageWriter
from penstock.errors import CodecError, PenstockError
from penstock.message.properties import PAIR_END, PROPERTIES_SIZE_MAX
from penstock.protocol.topic_names import WHEEL_TIMER_TOPIC
from penstock.store import MessageStore

_PAIR_END = PAIR_END.encode()
_LOG = logging.getLogger("penstock.broker")


class TimerCopies:
    """Makes the copies, and counts what waits."""

    def __init__(self, store: MessageStore, writer: MessageWriter, due: DueMessages) -> None:
        self._store = store
        self._writer = writer
        self._due = due
        # How many wait, by the hash of their topic; for the eye, not for decisions.
        self.counts: dict[int, int] = {}
        self.skipped = self.recalled = 0

    def ready(self, item: DueMessage, now_ms: int) -> AppendRequest | None:
        """The message made ready for where it goes; None if it goes nowhere. Raises BusyError if not now."""
        message = item.held or timer_message(self._store, item.position)
        if message is None:
            self.skip(item.position, "it cannot be read")
            return None
        properties = message.properties
        if self._due.has_recalls and not item.is_roll:
            topic, unique = properties.get(text.REAL_TOPIC, ""), properties.get(text.UNIQ_KEY, "")
            if self._due.is_recalled(item, times.recall_key(topic, unique)):
                self.recalled += 1
                return None
        try:
            if item.is_roll:
                rolled = properties.get(times.ROLL_TIMES, "0")
                number = int(rolled) + 1 if rolled.isdigit() and len(rolled) < 9 else 1
                return self._copy(message, WHEEL_TIMER_TOPIC, 0, {times.ROLL_TIMES: str(number)})
            put = {times.DEQUEUE_MS: str(now_ms)}
            if item.enqueued_ms != FAR:
                put[times.ENQUEUE_MS] = str(item.enqueued_ms)
            topic = properties.get(text.REAL_TOPIC, "")
            if not may_be_delivered_to(topic):
                raise CodecError(f"REAL_TOPIC is {topic[:80]!r}, which only the broker writes to")
            return self._copy(message, topic, queue_number(properties.get(text.REAL_QUEUE_ID, "")), put)
        except BusyError:
            raise  # there is no room for its queue now; there may be later
        except (PenstockError, ValueError) as error:
            self.skip(item.position, str(error))
            return None

    def _copy(self, message: TimerMessage, topic: str, queue_id: int, put: dict[str, str]) -> AppendRequest:
        return AppendRequest(
            self._writer.queue(topic, queue_id),
            message.body,
            _text_with(message, put),
            message.born_timestamp,
            message.born_host,
            message.flag,
            message.sys_flag,
            message.reconsume_times,
        )

    def count(self, topic_hash: int, step: int) -> None:
        """One more waits, or one less."""
        count = self.counts.get(topic_hash, 0) + step
        if count > 0:
            self.counts[topic_hash] = count
        else:
            self.counts.pop(topic_hash, None)

    def skip(self, position: int, why: str, *, quiet: bool = False) -> None:
        if not quiet:
            self.skipped += 1
            _LOG.error("the timer message at log position %d is skipped: %s", position, why)


def _text_with(message: TimerMessage, put: dict[str, str]) -> bytes:
    """The properties with some more behind them; without those where they do not fit: they tell, they were not
    sent."""
    stored = message.text
    if text.SEAL in message.properties or any(name in message.properties for name in put):
        stored = text.without(text.decode(stored), {text.SEAL, *put}).encode()
    elif stored and not stored.endswith(_PAIR_END):
        stored += _PAIR_END
    more = "".join([text.pair(name, value) for name, value in put.items()]).encode()
    return stored + more if len(stored) + len(more) <= PROPERTIES_SIZE_MAX else stored
