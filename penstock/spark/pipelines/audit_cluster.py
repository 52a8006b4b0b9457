"""What the brokers of a cluster say about topics and groups: ranges of queues, and how far the groups are.

Rule: asked on the driver through the admin client, a few requests per topic and group, no messages read. A group
that goes away meanwhile is left out; a broker that does not answer, or a set of brokers without a master, is an
error, because what it has would look like missing messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from penstock.client.access import FROM_ENVIRONMENT, Access, explaining
from penstock.client.admin import Admin
from penstock.client.routes import MessageQueue
from penstock.errors import ClientError, ResponseError, RouteNotFoundError
from penstock.spark.pipelines.audit_sources import Progress, QueueKey, Ranges, Source, choose_topics


@contextmanager
def _asking(nameserver: str, access: Access) -> Iterator[Admin]:
    with explaining(), Admin(nameserver, **access.settings()) as admin:
        yield admin


def cluster_topics(source: Source, **settings: Any) -> list[str]:
    """The chosen topics, asked with these settings of a client."""
    with Admin(source.nameserver, **settings) as admin:
        return _topics(admin, source)


def _topics(admin: Admin, source: Source) -> list[str]:
    names = admin.list_topics(internal=True)
    if source.topics and not names:
        admin.queues(source.topics[0])  # says what is wrong with a cluster that has none
    if not source.topics:
        # The admin client knows which of the names are the cluster's and the brokers' own.
        plain = set(admin.list_topics())
        names = [name for name in names if name in plain or name.startswith("%DLQ%")]
    return choose_topics(names, source.topics)


def cluster_ranges(source: Source) -> Ranges:
    """First and next offset of every queue of the chosen topics that can be read, cut to the source's times."""
    with _asking(source.nameserver, source.access) as admin:
        ranges: dict[QueueKey, tuple[int, int]] = {}
        for topic in _topics(admin, source):
            described = admin.describe_topic(topic)
            if headless := sorted(described.permissions.keys() - described.brokers.keys()):
                raise ClientError(
                    f"nobody says which messages of topic {topic} are at {', '.join(headless)}: no master is known",
                    "start it, or try again when one is elected",
                )
            # A broker also tells of queues that are only written to. A scan reads none of them, and takes no offset.
            readable = set(admin.queues(topic))
            for status in described.queues:
                if status.queue not in readable:
                    continue
                first, end = status.min_offset, status.max_offset
                if source.start is not None:
                    first = max(first, admin.offset_at(status.queue, source.start))
                if source.end is not None:
                    end = min(end, admin.offset_at(status.queue, source.end))
                ranges[_key(status.queue)] = (first, max(first, end))
        return ranges


def _key(queue: MessageQueue) -> QueueKey:
    return QueueKey(queue.topic, queue.broker_name, queue.queue_id)


def cluster_progress(source: Source, topics: Iterable[str]) -> tuple[tuple[Progress, ...], Mapping[str, int]]:
    """Offsets of all groups in these topics, and how often each group tries a message."""
    wanted = set(topics)
    found: list[Progress] = []
    tries: dict[str, int] = {}
    with _asking(source.nameserver, source.access) as admin:
        for group in admin.list_groups():
            try:
                described = admin.describe_group(group)
            except (ResponseError, RouteNotFoundError):
                continue
            tries[group] = described.retry_max_times
            found += [
                Progress(group, _key(item.queue), item.committed)
                for item in described.progress
                if item.queue.topic in wanted and item.committed >= 0
            ]
    return tuple(sorted(found)), tries


def cluster_firsts(source: Source, topics: Iterable[str]) -> Mapping[QueueKey, int]:
    """The first offset that the log still has, of every queue of these topics; one that is gone is left out."""
    found: dict[QueueKey, int] = {}
    with _asking(source.nameserver, source.access) as admin:
        for topic in sorted(set(topics)):
            try:
                described = admin.describe_topic(topic)
            except RouteNotFoundError:
                continue
            found.update((_key(status.queue), status.min_offset) for status in described.queues)
    return found


def target_queues(nameserver: str, topic: str, access: Access = FROM_ENVIRONMENT) -> dict[str, list[int]]:
    """Queues of a topic that can be sent to by broker, for choosing where rows go."""
    with _asking(nameserver, access) as admin:
        by_broker: dict[str, list[int]] = {}
        for queue in admin.write_queues(topic):
            by_broker.setdefault(queue.broker_name, []).append(queue.queue_id)
    return {broker: sorted(queues) for broker, queues in sorted(by_broker.items())}
