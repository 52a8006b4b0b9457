"""Messages that fail until they are dead letters."""

import penstock
from penstock.client.admin import Admin
from penstock.client.consumer import Consumer
from penstock.client.received import ReceivedMessage, Retry
from tests.waiting import PATIENT_SENDS, wait_until


def kill_all(address: str, count: int, *, group: str = "g", topic: str = "T") -> None:
    """Have so many messages of a topic die, each third for another reason."""

    def fail(message: ReceivedMessage) -> Retry:
        number = int(message.body.split()[-1])
        return Retry(-1, f"bad luck {number}" if number % 3 else "refused")

    with (
        Consumer(address, group=group, start_from="first", listener=fail) as consumer,
        Admin(address) as admin,
        penstock.Producer(address, **PATIENT_SENDS) as producer,
    ):
        consumer.subscribe(topic)
        for number in range(count):
            producer.send(topic, b"order %d" % number, keys=f"k{number}", tag="t", properties={"mine": "x"})
        wait_until(lambda: sum(summary.count for summary in admin.dead_letters.groups(group)) >= count)
