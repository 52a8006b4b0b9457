"""Messages for later, one of them taken back; and a question that waits for its answer.

Run `penstock up`, then `python examples/reminders.py`.
"""

import os
import time

import penstock

NAMESERVER = os.environ.get("PENSTOCK_NAMESERVER", "127.0.0.1:9876")


def remind(run: str) -> None:
    """Order 1 is paid in time and needs no reminder."""
    topic = f"reminders-{run}"
    with penstock.Producer(NAMESERVER, group="shop") as producer:
        first = producer.send(topic, b"order 1 is not paid", delay=3600)
        producer.send(topic, b"order 2 is not paid", delay=2)
        producer.recall(first.recall_handle)
        print("order 1 was paid: its reminder is taken back")
    with penstock.Consumer(NAMESERVER, group=f"mail-{run}", start_from="first") as consumer:
        consumer.subscribe(topic)
        for message in consumer:
            print(f"reminder: {message.body.decode()}")
            break


def ask(run: str) -> None:
    topic = f"prices-{run}"
    with penstock.Admin(NAMESERVER) as admin:
        admin.create_topic(topic, queues=1)
    with penstock.Producer(NAMESERVER, group=f"prices-{run}") as answering:

        def answer(message: penstock.ReceivedMessage) -> None:
            answering.reply(message, b"4 for " + message.body)

        with (
            penstock.Consumer(NAMESERVER, group=f"desk-{run}", start_from="first", listener=answer) as desk,
            penstock.Producer(NAMESERVER, group=f"customers-{run}") as customer,
        ):
            desk.subscribe(topic)
            reply = customer.request(topic, b"tea", timeout_ms=30_000)
            print(f"price: {reply.body.decode()}")


if __name__ == "__main__":
    run = f"{time.time_ns()}"
    remind(run)
    ask(run)
