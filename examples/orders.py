"""An order service: payments that fail are tried again, orders that make no sense become dead letters.

Run `penstock up`, then `python examples/orders.py`. Each run uses a topic and a group of its own.
"""

import json
import os
import threading
import time

import penstock

NAMESERVER = os.environ.get("PENSTOCK_NAMESERVER", "127.0.0.1:9876")
ORDERS = [
    {"id": 1, "item": "tea", "price": 4},
    {"id": 2, "item": "kettle", "price": 30},
    {"id": 3, "item": "cup", "price": -7},
]


def main() -> None:
    run = f"{time.time_ns()}"
    topic, group = f"orders-{run}", f"payments-{run}"
    settled = threading.Semaphore(0)

    def pay(message: penstock.ReceivedMessage) -> penstock.Retry | None:
        order = json.loads(message.body)
        if order["price"] <= 0:
            settled.release()
            return penstock.Retry(-1, reason=f"a price of {order['price']}")  # to the dead letters, at once
        if order["item"] == "kettle" and message.tries == 0:
            print(f"order {order['id']}: the bank does not answer, again in a second")
            return penstock.Retry(1)  # the first delay level is one second
        print(f"order {order['id']}: paid, {message.tries} tries before")
        settled.release()
        return None

    with (
        penstock.Producer(NAMESERVER, group="shop") as producer,
        penstock.Consumer(NAMESERVER, group=group, start_from="first", listener=pay, threads=1) as consumer,
    ):
        for order in ORDERS:
            producer.send(topic, json.dumps(order).encode(), keys=f"order-{order['id']}")
        consumer.subscribe(topic)
        for _ in ORDERS:
            settled.acquire()
    with penstock.Admin(NAMESERVER) as admin:
        for letter in admin.dead_letters.read(group):
            print(f"dead letter: {letter.message.body.decode()}, because of {letter.reason}")


if __name__ == "__main__":
    main()
