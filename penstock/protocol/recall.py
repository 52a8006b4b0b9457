"""Recall handles: what a producer keeps of a message that waits for its time, to take it back before.

    base64, URL-safe and padded, of `v1 <topic> <broker name> <ms> <unique id>`, one blank between

The time is the message's TIMER_OUT_MS plus one. Plain values.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from penstock.errors import CodecError

_SIZE_MAX = 1_024
_TIME_MAX = 2**63 - 1


class RecallHandle(NamedTuple):
    """See the module's text."""

    topic: str
    broker_name: str
    time_ms: int
    unique: str

    def encode(self) -> str:
        plain = f"v1 {self.topic} {self.broker_name} {self.time_ms} {self.unique}"
        return base64.urlsafe_b64encode(plain.encode()).decode()

    @staticmethod
    def decode(handle: str) -> RecallHandle:
        """Raises CodecError for what is no handle."""
        try:
            if len(handle) > _SIZE_MAX:
                raise ValueError
            parts = base64.b64decode(handle.encode("ascii"), b"-_", validate=True).decode().split(" ")
            version, topic, broker_name, time, unique = parts
            if version != "v1" or not topic or not unique or not time.isascii() or not time.isdigit():
                raise ValueError
            if int(time) > _TIME_MAX:
                raise ValueError
        except (ValueError, binascii.Error):
            raise CodecError(
                f"{handle[:80]!r} is no recall handle", "use the one that came with the send's answer"
            ) from None
        return RecallHandle(topic, broker_name, int(time), unique)
