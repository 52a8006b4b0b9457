"""What a send, or the recall of one, has to do with timers: refuse, or say where the message waits.

    wheel off        1            a level and a time, no number, too far ahead, another topic's message recalled   13
    slot is full     1            recall of what is due already                                                   13

Owned by the event loop. `waiting` is also for messages that become visible later than they were sent: a transaction's
delay begins with its commit.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.broker import timer_times as times
from penstock.broker.timer import TimerService
from penstock.errors import RequestError
from penstock.protocol.codes import ResponseCode


class TimerSends:
    """One for a broker."""

    def __init__(self, timers: TimerService) -> None:
        self._timers = timers

    def waiting(self, pairs: Mapping[str, str], level: int, topic: str, queue_id: int) -> dict[str, str]:
        """Properties of a message that has to wait in the timer topic; none if it has not. Raises RequestError."""
        if not any(name in pairs for name in times.ASKING):
            return {}
        times.check_not_both(pairs, level)
        if level or times.OUT_MS in pairs:  # what was delivered once is not delayed again
            return {}
        options = self._timers.options
        if not options.timers:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"broker {options.broker_name} delivers at no time of choice",
                "use a delay level, or turn timers on (timerWheelEnable)",
            )
        times.check_recalls(pairs, topic)
        due_ms = times.asked_ms(pairs, self._timers.now_ms(), options.timer_max_delay_s * 1_000)
        if not due_ms:
            if times.RECALLS in pairs:
                raise RequestError(
                    ResponseCode.MESSAGE_ILLEGAL, "the message to recall is due already", "it is too late"
                )
            return {}
        if self._timers.slot_count(due_ms) >= options.timer_slot_max:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"{options.timer_slot_max} messages wait for the second before {due_ms} already",
                "use another time, or raise timer_slot_max (timerCongestNumEachSlot)",
            )
        return times.waiting(due_ms, topic, queue_id)
