"""Which topic holds the retries of a group that pops: RocketMQ has two names for it.

    %RETRY%<group>_<topic>   RocketMQ's first, and its default. Groups share it by their names: group `a` with topic
                             `b_c`, group `a_b` with topic `c`, and the group `a_b_c`, whose own retry topic it is
    %RETRY%<group>+<topic>   its second: no group or topic has a `+`, so it belongs to one group and one topic

Rule: with access control retries go to the second name, so that no user reads or forges another's. What is in a topic
of the first name is still read, and goes to the second name when it comes back once more; but not while the name is
shared, because nothing says whose messages these are. Owned by the event loop.
"""

from __future__ import annotations

import logging

from penstock.broker.groups import Groups
from penstock.broker.topics import Topics
from penstock.protocol.pop_handles import RETRY_V1, RETRY_V2, pop_retry_topic, topic_kind

_LOG = logging.getLogger("penstock.broker")


class RetryNames:
    """See the module's text. `is_guarded`: with access control."""

    def __init__(self, groups: Groups, topics: Topics, *, is_guarded: bool) -> None:
        self._groups = groups
        self._topics = topics
        self.is_guarded = is_guarded
        self._reported: set[str] = set()

    def kind(self, *, is_second: bool) -> str:
        """Of the name that retries go to; `is_second`: as configured."""
        return RETRY_V2 if is_second or self.is_guarded else RETRY_V1

    def readable(self, group: str, topic: str) -> list[tuple[str, str]]:
        """Kinds and names of the retry topics that a pop reads."""
        found = []
        for kind in (RETRY_V1, RETRY_V2):
            name = pop_retry_topic(group, topic, kind)
            if self._topics.get(name) is None:
                continue
            if kind == RETRY_V1 and self.is_guarded and self.is_shared(group, topic):
                self._report(name)
            else:
                found.append((kind, name))
        return found

    def origin(self, group: str, topic: str) -> str:
        """The topic whose messages a topic holds for a group: that of its retries, or the topic itself if its name
        may say something else."""
        kind, origin = topic_kind(group, topic)
        if kind == RETRY_V1 and (
            self._groups.find(f"{group}_{origin}") is not None
            or (self.is_guarded and self.is_shared(group, origin))
        ):
            return topic
        return origin

    def is_shared(self, group: str, topic: str) -> bool:
        """Whether the first name stands for another group, or for another group with another topic, as well."""
        joined = f"{group}_{topic}"
        if self._groups.find(joined) is not None:
            return True
        place = joined.find("_")
        while place >= 0:
            if (
                place != len(group)
                and self._groups.find(joined[:place]) is not None
                and self._topics.get(joined[place + 1 :]) is not None
            ):
                return True
            place = joined.find("_", place + 1)
        return False

    def _report(self, name: str) -> None:
        if name not in self._reported:
            self._reported.add(name)
            _LOG.warning(
                "retries in %s are not popped: several groups share this name, and access control is on; an admin "
                "can read the topic, and retries are popped once the other groups or topics are deleted",
                name,
            )
