"""Which topics every broker set has, and how many queues: as its master said last, in its beats.

Rules. A master names the version of its topic table in each beat; the table itself comes along only when the answer
to an earlier beat said that this coordinator has another version, or none. What is here is lost when the leader
changes, and complete again one beat later. Only the present master of a set counts; a set whose brokers are all gone
keeps its topics (messages are there), but is not live. Sans-I/O; owned by the coordinator's event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

READABLE, WRITABLE = 4, 2


class SetName(NamedTuple):
    """A broker set. Names are unique over clusters, as in RocketMQ."""

    cluster: str
    name: str


class TopicQueues(NamedTuple):
    """A topic on one broker set. `perm`: 4 read, 2 write, 1 inherit."""

    read: int
    write: int
    perm: int = 6

    @property
    def readable(self) -> int:
        return self.read if self.perm & READABLE else 0

    @property
    def writable(self) -> int:
        return self.write if self.perm & WRITABLE else 0


class TopicReports:
    """See the module's text. `is_live` says whether a set has a master that may take work."""

    def __init__(self, is_live: Callable[[SetName], bool] = lambda _: True) -> None:
        self._is_live = is_live
        self._versions: dict[SetName, int] = {}
        self._topics: dict[SetName, dict[str, TopicQueues]] = {}
        self._listeners: list[Callable[[SetName], None]] = []

    def on_change(self, listener: Callable[[SetName], None]) -> None:
        """Called with the set after its topics changed."""
        self._listeners.append(listener)

    def version(self, of: SetName) -> int | None:
        """The version of a set's table that is known here."""
        return self._versions.get(of)

    def report(self, of: SetName, version: int, topics: Mapping[str, TopicQueues]) -> None:
        """The master of a set sent its table."""
        before = self._topics.get(of)
        self._versions[of] = version
        self._topics[of] = dict(topics)
        if before != self._topics[of]:
            self._tell(of)

    def expect_again(self, of: SetName) -> None:
        """The set has another master, whose versions are its own; its table is asked for."""
        self._versions.pop(of, None)

    def forget(self, of: SetName) -> None:
        """The set is gone for good."""
        self._versions.pop(of, None)
        if self._topics.pop(of, None) is not None:
            self._tell(of)

    def clear(self) -> None:
        """This coordinator does not lead any more."""
        self._versions.clear()
        self._topics.clear()

    def _tell(self, of: SetName) -> None:
        for listener in list(self._listeners):
            listener(of)

    # -- questions -------------------------------------------------------------------------------------------

    @property
    def sets(self) -> list[SetName]:
        return sorted(self._topics)

    def live_sets(self) -> list[SetName]:
        """Sets that can take new queues."""
        return [one for one in self.sets if self._is_live(one)]

    def topics(self, of: SetName) -> Mapping[str, TopicQueues]:
        return self._topics.get(of, {})

    def topic_names(self) -> set[str]:
        return {topic for topics in self._topics.values() for topic in topics}

    def loads(self) -> dict[str, int]:
        """Broker name -> queues of all its topics, live sets only: what placement compares."""
        return {
            one.name: sum(queues.write for queues in self._topics[one].values()) for one in self.live_sets()
        }

    def existing(self, topic: str) -> dict[str, int]:
        """Broker name -> queues of a topic, sets that are not live included."""
        return {
            one.name: topics[topic].write for one, topics in sorted(self._topics.items()) if topic in topics
        }

    def readable(self, topics: Iterable[str]) -> dict[str, dict[str, int]]:
        """Topic -> broker name -> queues that can be read: what consumers are given."""
        wanted = set(topics)
        return {
            topic: {
                one.name: held[topic].readable
                for one, held in sorted(self._topics.items())
                if topic in held and held[topic].readable
            }
            for topic in sorted(wanted)
        }
