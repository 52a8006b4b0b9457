"""Retention waits: tells the store how far those groups are that it was told to wait for, and what timers still hold.

A group counts in the topics in which it has committed an offset; there every queue is needed from the group's offset
on, and one without an offset from its beginning. Offsets only tell what may go: one that is saved late, or lost in a
crash, keeps a segment longer. The first one of a group in a topic is told at once: from then on nothing may go. A
group that is gone with its offsets holds nothing back. A message that waits for its time is needed until it is
delivered for sure; on its way it moves to newer segments (`timer_times.py`).

Owned by the event loop, which also owns the offsets; the store's keeper thread gets a copy.
"""

from __future__ import annotations

from penstock.broker.offsets import ConsumerOffsets
from penstock.broker.timer import TimerService
from penstock.metadata.offset_table import TopicGroup
from penstock.protocol.topic_names import WHEEL_TIMER_TOPIC
from penstock.store import MessageStore
from penstock.store.retention import Needed


class RetentionGroups:
    """Call `tell` once the offsets are loaded, and again at the pace at which retention looks."""

    def __init__(self, offsets: ConsumerOffsets, store: MessageStore, timers: TimerService) -> None:
        self._offsets = offsets
        self._store = store
        self._timers = timers
        self._groups = store.options.retention_groups
        # Groups in topics that the store knows of; None while somebody else decides what may go.
        self._told: set[TopicGroup] | None = None
        if self._groups:
            offsets.on_change.append(self._changed)

    def tell(self) -> None:
        self._told = {
            TopicGroup(topic, group)
            for group in self._groups
            for topic in self._offsets.topics_of_group(group)
        }
        self._store.keeper.keep(self.needed())

    def _changed(self, key: TopicGroup) -> None:
        if self._told is not None and key.group in self._groups and key not in self._told:
            self.tell()

    def tell_of_timers(self) -> None:
        """What a slave knows: its wheel is its own, the offsets of groups are its master's to judge by."""
        self._told = None
        if not self._groups:
            self._store.keeper.keep(self._with_timers(()))

    def needed(self) -> Needed:
        found = [
            (topic, dict(self._offsets.queues(group, topic)))
            for group in self._groups
            for topic in self._offsets.topics_of_group(group)
        ]
        return self._with_timers(tuple(found))

    def _with_timers(self, found: tuple[tuple[str, dict[int, int]], ...]) -> Needed:
        held = self._timers.needed()
        if held is None:
            return Needed(found)
        position, offset = held
        return Needed((*found, (WHEEL_TIMER_TOPIC, {0: offset})), position)
