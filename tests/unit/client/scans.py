"""Topics with numbered messages, and what a scan's answers have of them."""

import penstock
from penstock.client.received import decode_records
from tests.waiting import PATIENT_SENDS


def fill(address, topic, count, *, queues=1, **parts):
    with penstock.Admin(address) as admin:
        admin.create_topic(topic, queues)
    with penstock.Producer(address, **PATIENT_SENDS) as producer:
        places = [penstock.MessageQueue(topic, "test-broker", number) for number in range(queues)]
        for future in [
            producer.send_async(topic, b"%d" % n, queue=places[n % queues], **parts) for n in range(count)
        ]:
            future.result()


def bodies(answers) -> list[bytes]:
    return [message.body for answer in answers if answer.data for message in decode_records(answer.data)]
