"""A broker whose retention deletes, and which restarts, when a test says so."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from penstock.broker.broker import Broker
from penstock.client.loop_thread import LoopThread
from penstock.testing import EmbeddedBroker
from penstock.testing.embedded import STORE
from tests.spark.conftest import Node


class ExpiringNode(Node):
    """Segments of 1 MiB that are too old as soon as they are full."""

    embedded: EmbeddedBroker
    thread: LoopThread

    @property
    def store(self):
        return self.embedded.broker.store

    def expire(self) -> None:
        """Delete every segment but the one in use."""

        async def clean() -> None:
            self.store.flush()
            while self.store.keeper.clean():
                pass

        self.store.keeper.request_clean()
        self.thread.run(clean())

    def restart(self) -> None:
        """Stop the broker and start it again on another port; the name server stays."""
        old = self.embedded.broker

        async def again() -> None:
            await old.stop()
            made = Broker(
                replace(old.options, port=0),
                self.embedded.store_options,
                self.directory,
                runtime=self.embedded.runtime,
            )
            self.embedded.broker = made
            await made.start()

        self.thread.run(again())

    def send_and_expire(self, topic: str, count: int, size: int = 8_000) -> int:
        """Send to queue 0 and delete what can be; the first offset that is left."""
        self.send(topic, [b"%08d" % n + os.urandom(size) for n in range(count)], queue_id=0)
        self.expire()
        first = int(self.store.min_offset(topic, 0))
        assert first > 0
        return first


@contextmanager
def expiring_node(directory: Path) -> Iterator[ExpiringNode]:
    never = f"{(datetime.now().hour + 12) % 24:02d}"  # noqa: DTZ005
    store = replace(
        STORE,
        segment_size_bytes=1 << 20,
        max_message_size_bytes=512 << 10,
        file_reserved_hours=0,
        delete_when=never,
    )
    embedded, thread = EmbeddedBroker(directory, store=store), LoopThread("penstock-test-broker")
    try:
        thread.run(embedded.start())
        try:
            node = ExpiringNode(embedded.address, directory)
            node.embedded, node.thread = embedded, thread
            try:
                yield node
            finally:
                node.close()
        finally:
            thread.run(embedded.stop())
    finally:
        thread.stop()
