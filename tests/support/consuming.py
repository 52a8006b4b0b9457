"""What tests of consumers share: a broker for each test, producers, and patience."""

from collections.abc import Callable, Iterable

import penstock
from penstock.client.received import ReceivedMessage
from tests.waiting import PATIENT_SENDS

# A message that is handed back comes again at once instead of after 10 s and more.
QUICK = {"delay_levels": " ".join(["0s"] * 18)}


def send(address: str, topic: str, *bodies: bytes, tag: str = "", queue_key: str = "") -> None:
    with penstock.Producer(address, **PATIENT_SENDS) as producer:
        for body in bodies:
            producer.send(topic, body, tag=tag, queue_key=queue_key)


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def take(messages: Iterable[ReceivedMessage], count: int) -> list[bytes]:
    """The bodies of the next messages; the loop is left at the last one."""
    got = []
    for message in messages:
        got.append(message.body)
        if len(got) == count:
            break
    return got


class Seen:
    """A listener that remembers what it saw."""

    def __init__(self, outcome: Callable[[ReceivedMessage], object] = lambda message: None) -> None:
        self.messages: list[ReceivedMessage] = []
        self.outcome = outcome

    def __call__(self, message: ReceivedMessage) -> object:
        self.messages.append(message)
        return self.outcome(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in list(self.messages)]
