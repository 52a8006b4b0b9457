"""What is written on a message that failed: why, when first, and where it came from. Shared by client and broker.

    PENSTOCK_REASON         why it failed last, `ValueError: no such customer`; from the consumer, bounded here
    PENSTOCK_FIRST_FAILED   milliseconds since the epoch, when a broker first took it back
    PENSTOCK_ORIGIN         broker/queue/offset of the message as its producer sent it
    PENSTOCK_UNPROVEN       `true` if a client sent the retry itself and may not publish to the topic that it names

RocketMQ's own marks, RETRY_TOPIC (first topic) and ORIGIN_MESSAGE_ID (first id), stay beside them. The notes
travel with every copy through the retry topic to the dead letters. Rules: a reason is text from outside, so it
is cut and cleaned wherever it is taken in; a message is never refused because of what is noted on it.
Pure functions.
"""

from __future__ import annotations

REASON = "PENSTOCK_REASON"
FIRST_FAILED = "PENSTOCK_FIRST_FAILED"
ORIGIN = "PENSTOCK_ORIGIN"
UNPROVEN = "PENSTOCK_UNPROVEN"
NOTES = (REASON, FIRST_FAILED, ORIGIN, UNPROVEN)
# On a message that was sent again out of the dead letters: the offset id of the dead letter.
REDRIVEN_FROM = "PENSTOCK_REDRIVEN_FROM"
REASON_BYTES_MAX = 512


def bounded_reason(text: str) -> str:
    """One line of at most 512 bytes that may stand in a property."""
    head = text[:REASON_BYTES_MAX]
    line = " ".join("".join(c if c.isprintable() else " " for c in head).split())
    data = line.encode("utf-8", "replace")
    if len(data) <= REASON_BYTES_MAX and len(text) <= REASON_BYTES_MAX:
        return data.decode("utf-8")
    return data[: REASON_BYTES_MAX - 4].decode("utf-8", "ignore").rstrip() + " ..."


def reason_of(error: BaseException) -> str:
    """What was raised, as a reason: its type and the beginning of its text."""
    try:
        said = str(error)
    except Exception:  # an error that cannot even say what it is
        said = ""
    name = type(error).__name__
    return bounded_reason(f"{name}: {said}" if said.strip() else name)
