"""Retention waits for groups: tells the store how far those groups are that it was told to wait for.

A group counts in the topics in which it has committed an offset; there every queue is needed from the group's offset
on, and one without an offset from its beginning. Offsets only tell what may go: one that is saved late, or lost in a
crash, keeps a segment longer. A group that is gone with its offsets holds nothing back.

Owned by the event loop, which also owns the offsets; the store's keeper thread gets a copy.
"""

from __future__ import annotations

from penstock.broker.offsets import ConsumerOffsets
from penstock.store import MessageStore
from penstock.store.retention import Needed


class RetentionGroups:
    """Call `tell` once the offsets are loaded, and again at the pace at which retention looks."""

    def __init__(self, offsets: ConsumerOffsets, store: MessageStore) -> None:
        self._offsets = offsets
        self._store = store
        self._groups = store.options.retention_groups

    def tell(self) -> None:
        if self._groups:
            self._store.keeper.keep(self.needed())

    def needed(self) -> Needed:
        found = [
            (topic, dict(self._offsets.queues(group, topic)))
            for group in self._groups
            for topic in self._offsets.topics_of_group(group)
        ]
        return Needed(tuple(found))
