"""A consumer in a process of its own that a broker pushes to, until it is killed: it prints each body in a line.

python -m tests.fault.push_program NAME_SERVER GROUP TOPIC
"""

from __future__ import annotations

import sys
import threading

import penstock
from penstock.client.received import ReceivedMessage


def show(message: ReceivedMessage) -> None:
    sys.stdout.write(message.body.decode() + "\n")
    sys.stdout.flush()


def main() -> None:
    name_server, group, topic = sys.argv[1:]
    with penstock.Consumer(
        name_server,
        group=group,
        delivery="push",
        threads=1,
        start_from="first",
        listener=show,
        pull_retry_ms=100,
    ) as consumer:
        consumer.subscribe(topic)
        threading.Event().wait()


if __name__ == "__main__":
    main()
