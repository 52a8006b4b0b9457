"""What brokers have said about themselves, and for how long that is believed.

    queues        topic -> { broker name -> queues and permission }
    brokers       broker name -> its cluster and the addresses of its master (id 0) and slaves
    clusters      cluster -> broker names
    live          (cluster, address) -> when it was last heard, its data version, its connection, its HA address
    filters       (cluster, address) -> filter servers, passed on as they came
    mappings      topic -> { broker name -> static-topic mapping }, passed on as it came

Rules, checked by `validate` and by a model in the tests: every address of a broker has a live entry; a broker
without addresses, a topic without brokers and a cluster without brokers are not kept; a registration that is
refused changes nothing but, for a stale one, the sender's own entry. Nobody is told that a broker died:
clients ask again (S3-33). Times are of the monotonic clock and come in as arguments. Plain code owned by the
server's loop, no I/O: it names connections by number and leaves closing and sending to the server.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from penstock.errors import RequestError, invariant
from penstock.metadata.config_files import DataVersion
from penstock.metadata.fastjson import JsonValue
from penstock.metadata.topic_table import Permission, TopicConfig
from penstock.nameserver.options import NameServerOptions
from penstock.protocol.bodies.route import MASTER_ID, BrokerData, QueueData
from penstock.protocol.codes import ResponseCode

_LOG = logging.getLogger("penstock.nameserver")
READ_WRITE = int(Permission.READ | Permission.WRITE)
_NOT_WRITE = ~int(Permission.WRITE)
T = TypeVar("T")


class Place(NamedTuple):
    """Key of the live table."""

    cluster: str
    address: str


@dataclass(slots=True)
class LiveBroker:
    """One process that registered. `connection` is the number of the connection it used last."""

    broker: str
    connection: int
    heard_ms: int
    expiry_ms: int
    data_version: DataVersion
    ha_address: str
    # Of the body that was read last, and the count of removals then: the same body says nothing new.
    digest: bytes
    removals: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a broker says. `acting_master` is None for brokers that do not know of it (4.x)."""

    cluster: str
    broker: str
    broker_id: int
    address: str
    connection: int
    ha_address: str = ""
    topics: Mapping[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    mappings: Mapping[str, JsonValue] = field(default_factory=dict)
    filter_servers: tuple[str, ...] = ()
    expiry_ms: int = 120_000
    acting_master: bool | None = None
    zone: str | None = None
    digest: bytes = b""

    @property
    def place(self) -> Place:
        return Place(self.cluster, self.address)


@dataclass(frozen=True, slots=True)
class MinIdChange:
    """The smallest id of an acting-master broker changed; `connections` are those of the members to be told."""

    broker: str
    min_id: int
    min_address: str
    connections: tuple[int, ...]
    offline_address: str | None = None
    ha_address: str | None = None


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a registration: where a slave finds its master, if that lives."""

    master_address: str | None = None
    ha_address: str | None = None
    notice: MinIdChange | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    """A broker that left the live table. `broker_id` is None if another address has taken its id."""

    place: Place
    broker: str
    broker_id: int | None
    connection: int
    notice: MinIdChange | None = None


class RouteTable:
    """See the module's text."""

    def __init__(self, options: NameServerOptions) -> None:
        self._options = options
        self.queues: dict[str, dict[str, QueueData]] = {}
        self.brokers: dict[str, BrokerData] = {}
        self.clusters: dict[str, set[str]] = {}
        self.live: dict[Place, LiveBroker] = {}
        self.filters: dict[Place, tuple[str, ...]] = {}
        self.mappings: dict[str, dict[str, JsonValue]] = {}
        # Counts what may change an answer: answers of the same count are the same.
        self.changes = 0
        # Counts removals of brokers and topics, after which an old registration may say something new again.
        self.removals = 0

    # -- registration ----------------------------------------------------------------------------------------

    def register(self, new: Registration, now_ms: int, *, delete_missing: bool = False) -> Registered:
        """Take in what a broker says of itself. Raises RequestError where it is refused.

        `delete_missing` takes the table for the broker's whole one: topics that are not in it go.
        """
        self._refuse_other_name(new)
        known = self.brokers.get(new.broker)
        self._refuse_conflicts(new, known)
        if self._is_stale(new, known):
            self._remove(new.place)
            return Registered()
        self._refuse_lone_topic(new, known)
        ids_before = dict(known.broker_addrs) if known is not None else {}
        is_first = ids_before.get(new.broker_id) != new.address
        self._enter(new, known)
        if self._speaks_for_broker(new):
            if delete_missing and not new.mappings and len(new.topics) != 1:
                self._drop_topics(new.broker, keep=new.topics)
            self._take_topics(new, is_first)
        self.live[new.place] = LiveBroker(
            new.broker,
            new.connection,
            now_ms,
            new.expiry_ms,
            new.data_version,
            new.ha_address,
            new.digest,
            self.removals,
        )
        self._take_filters(new)
        return self._answer(new, ids_before)

    def is_repeated(self, cluster: str, broker: str, broker_id: int, address: str, digest: bytes) -> bool:
        """Whether a registration with a body of this digest brings no topics that are not here already.

        Brokers repeat themselves every 30 s, and reading a large body is most of the work.
        """
        found = self.live.get(Place(cluster, address))
        members = self.brokers.get(broker)
        return (
            found is not None
            and members is not None
            and members.broker_addrs.get(broker_id) == address
            and (found.broker, found.digest, found.removals) == (broker, digest, self.removals)
        )

    def _refuse_other_name(self, new: Registration) -> None:
        """An address is one process, with one broker name; another name for it must come from that process."""
        found = self.live.get(new.place)
        if found is None or found.broker == new.broker:
            return
        if found.connection != new.connection:
            _LOG.error("%s is broker %s: registration as %s refused", new.address, found.broker, new.broker)
            raise _refusal(
                f"{new.address} is registered as broker {found.broker!r}",
                "two brokers cannot share an address; if it was renamed, try again when the old one is gone",
            )
        self._remove(new.place)

    def _refuse_conflicts(self, new: Registration, known: BrokerData | None) -> None:
        """One broker name, one cluster; and no more of anything than the limits say."""
        if known is not None and known.cluster != new.cluster:
            _LOG.error(
                "%s wants to register broker %s for cluster %s, but it belongs to cluster %s (%s)",
                *(
                    new.address,
                    new.broker,
                    new.cluster,
                    known.cluster,
                    ", ".join(known.broker_addrs.values()),
                ),
            )
            raise _refusal(
                f"broker {new.broker!r} belongs to cluster {known.cluster!r}",
                "give one of the two another name, or stop the other first",
            )
        options = self._options
        self._require_room("brokers_max", len(self.live), new.place not in self.live, options.brokers_max)
        self._require_room(
            "clusters_max", len(self.clusters), new.cluster not in self.clusters, options.clusters_max
        )
        added = sum(topic not in self.queues for topic in new.topics)
        self._require_room("topics_max", len(self.queues), added, options.topics_max)

    def _require_room(self, option: str, count: int, added: int, limit: int) -> None:
        if added and count + added > limit:
            raise _refusal(f"{count} + {added} is more than {option}, {limit}", f"raise {option}")

    def _is_stale(self, new: Registration, known: BrokerData | None) -> bool:
        """Whether another address holds this id with a newer epoch: the newcomer was master before it."""
        holder = known.broker_addrs.get(new.broker_id) if known is not None else None
        if holder is None or holder == new.address:
            return False
        theirs = self.live[Place(new.cluster, holder)].data_version.state_version
        if theirs > new.data_version.state_version:
            _LOG.error(
                "registration of %s as broker %s id %d refused: %s holds it with state version %d > %d",
                *(new.address, new.broker, new.broker_id, holder, theirs, new.data_version.state_version),
            )
            return True
        _LOG.warning(
            "broker %s id %d: %s takes the place of %s", new.broker, new.broker_id, new.address, holder
        )
        return False

    def _refuse_lone_topic(self, new: Registration, known: BrokerData | None) -> None:
        """A table of one topic is an increment, and there is nothing to add it to."""
        if len(new.topics) == 1 and (known is None or new.broker_id not in known.broker_addrs):
            raise _refusal(
                "one topic is an increment, but the broker is not known", "register the whole table"
            )

    def _enter(self, new: Registration, known: BrokerData | None) -> None:
        """Cluster and address; an address that was registered under another id has changed its role."""
        others = known.broker_addrs if known is not None else {}
        addresses = {id_: address for id_, address in others.items() if address != new.address}
        addresses[new.broker_id] = new.address
        members = BrokerData(new.cluster, new.broker, addresses, new.zone, bool(new.acting_master))
        self.changes += members != known
        self.brokers[new.broker] = members
        self.clusters.setdefault(new.cluster, set()).add(new.broker)

    def _speaks_for_broker(self, new: Registration) -> bool:
        """Topics are those of the master, or while there is none of the slave with the smallest id."""
        is_prime = new.acting_master is not None and new.broker_id == min(
            self.brokers[new.broker].broker_addrs
        )
        return new.broker_id == MASTER_ID or is_prime

    def _take_topics(self, new: Registration, is_first: bool) -> None:
        before = self.live.get(new.place)
        is_changed = is_first or before is None or before.data_version != new.data_version
        is_read_only = new.broker_id != MASTER_ID and bool(new.acting_master)
        for topic, config in new.topics.items():
            on_brokers = self.queues.setdefault(topic, {})
            if is_changed or new.broker not in on_brokers:
                perm = int(config.perm) & _NOT_WRITE if is_read_only else int(config.perm)
                data = QueueData(
                    new.broker, config.read_queue_nums, config.write_queue_nums, perm, config.sys_flag
                )
                self.changes += on_brokers.get(new.broker) != data
                on_brokers[new.broker] = data
        if is_changed:
            for topic, mapping in new.mappings.items():
                # Only beside its queues, so that it leaves with them.
                if new.broker in self.queues.get(topic, ()):
                    by_broker = self.mappings.setdefault(topic, {})
                    self.changes += by_broker.get(new.broker) != mapping
                    by_broker[new.broker] = mapping

    def _take_filters(self, new: Registration) -> None:
        self.changes += self.filters.get(new.place, ()) != new.filter_servers
        if new.filter_servers:
            self.filters[new.place] = new.filter_servers
        else:
            self.filters.pop(new.place, None)

    def _answer(self, new: Registration, ids_before: Mapping[int, str]) -> Registered:
        members = self.brokers[new.broker]
        notice = None
        if members.enable_acting_master and ids_before and new.broker_id < min(ids_before):
            others = [address for id_, address in members.broker_addrs.items() if id_ != new.broker_id]
            notice = MinIdChange(
                new.broker,
                new.broker_id,
                new.address,
                self._connections(new.cluster, others),
                ha_address=new.ha_address or None,
            )
        master = members.master
        if new.broker_id == MASTER_ID or master is None:
            return Registered(notice=notice)
        return Registered(master, self.live[Place(new.cluster, master)].ha_address or None, notice)

    # -- leaving ---------------------------------------------------------------------------------------------

    def unregister(self, cluster: str, broker: str, address: str) -> Removed | None:
        """A broker says that it leaves."""
        found = self.live.get(Place(cluster, address))
        return self._remove(Place(cluster, address)) if found is not None and found.broker == broker else None

    def drop_connection(self, connection: int) -> list[Removed]:
        """Everyone who registered over a connection that is gone, and has not come back over another."""
        places = [place for place, live in self.live.items() if live.connection == connection]
        return [removed for place in places if (removed := self._remove(place)) is not None]

    def expire(self, now_ms: int) -> list[Removed]:
        """Everyone who was silent for too long."""
        late = [(place, live) for place, live in self.live.items() if live.heard_ms + live.expiry_ms < now_ms]
        for place, live in late:
            _LOG.warning(
                "broker %s at %s was silent for %d ms, more than its %d: removed",
                *(live.broker, place.address, now_ms - live.heard_ms, live.expiry_ms),
            )
        return [removed for place, _ in late if (removed := self._remove(place)) is not None]

    def touch(self, cluster: str, address: str, now_ms: int) -> bool:
        """A sign of life; whether the broker is known."""
        found = self.live.get(Place(cluster, address))
        if found is not None:
            found.heard_ms = now_ms
        return found is not None

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        found = self.live.get(Place(cluster, address))
        return None if found is None else found.data_version

    def _remove(self, place: Place) -> Removed | None:
        gone = self.live.pop(place, None)
        self.filters.pop(place, None)
        if gone is None:
            return None
        self.changes += 1
        self.removals += 1
        members = self.brokers.get(gone.broker)
        if members is None or members.cluster != place.cluster:
            return Removed(place, gone.broker, None, gone.connection)
        left = {id_: address for id_, address in members.broker_addrs.items() if address != place.address}
        broker_id = next((id_ for id_ in members.broker_addrs if id_ not in left), None)
        removed = Removed(place, gone.broker, broker_id, gone.connection)
        if broker_id is None:
            return removed
        if not left:
            self._drop_broker(members)
            return removed
        self.brokers[gone.broker] = replace(members, broker_addrs=left)
        if members.enable_acting_master and MASTER_ID not in left:
            self._set_permissions(gone.broker, keep=_NOT_WRITE)
        return replace(removed, notice=self._left_notice(members, left, place.address))

    def _left_notice(self, before: BrokerData, left: dict[int, str], offline: str) -> MinIdChange | None:
        if not before.enable_acting_master or min(before.broker_addrs) in left:
            return None
        min_id = min(left)
        told = self._connections(before.cluster, left.values())
        return MinIdChange(before.broker_name, min_id, left[min_id], told, offline_address=offline)

    def _drop_broker(self, members: BrokerData) -> None:
        del self.brokers[members.broker_name]
        names = self.clusters[members.cluster]
        names.discard(members.broker_name)
        if not names:
            del self.clusters[members.cluster]
        self._drop_topics(members.broker_name)

    def _drop_topics(self, broker: str, keep: Mapping[str, object] | None = None) -> None:
        for topic in [
            topic for topic, on in self.queues.items() if broker in on and topic not in (keep or ())
        ]:
            self._drop_queues(topic, broker)

    def _drop_queues(self, topic: str, broker: str) -> None:
        self.changes += 1
        self.removals += 1
        _drop_inner(self.queues, topic, broker)
        _drop_inner(self.mappings, topic, broker)

    def _connections(self, cluster: str, addresses: Iterable[str]) -> tuple[int, ...]:
        return tuple(self.live[Place(cluster, address)].connection for address in addresses)

    # -- what administrators change --------------------------------------------------------------------------

    def wipe_write_permission(self, broker: str) -> int:
        """Until the broker's next change nobody is sent there to write; how many topics it has."""
        return self._set_permissions(broker, keep=_NOT_WRITE)

    def add_write_permission(self, broker: str) -> int:
        return self._set_permissions(broker, add=READ_WRITE)

    def _set_permissions(self, broker: str, keep: int = 0, add: int = 0) -> int:
        count = 0
        for on_brokers in self.queues.values():
            found = on_brokers.get(broker)
            if found is not None:
                on_brokers[broker] = replace(found, perm=found.perm & keep | add)
                count += 1
        self.changes += 1
        return count

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """From all brokers, or from those of one cluster."""
        brokers = list(self.queues.get(topic, ())) if cluster is None else self.clusters.get(cluster, ())
        for broker in brokers:
            self._drop_queues(topic, broker)

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> bool:
        """Routes that an administrator names; whether they were taken, which needs every broker to be known."""
        given = {data.broker_name: data for data in queues}
        if not given or any(broker not in self.brokers for broker in given):
            return False
        self._require_room("topics_max", len(self.queues), topic not in self.queues, self._options.topics_max)
        self.queues.setdefault(topic, {}).update(given)
        self.changes += 1
        return True

    # -- self-check ------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Stop if the tables contradict each other."""
        for name, members in self.brokers.items():
            invariant(bool(members.broker_addrs), f"broker {name} has no address")
            invariant(name in self.clusters.get(members.cluster, ()), f"broker {name} is in no cluster")
            for address in members.broker_addrs.values():
                live = self.live.get(Place(members.cluster, address))
                invariant(live is not None and live.broker == name, f"{address} of {name} is not live")
        for cluster, names in self.clusters.items():
            invariant(bool(names) and names <= self.brokers.keys(), f"cluster {cluster} has ghosts")
        for topic, on_brokers in self.queues.items():
            known = on_brokers.keys() <= self.brokers.keys()
            invariant(bool(on_brokers) and known, f"topic {topic} has ghosts")
        for topic, by_broker in self.mappings.items():
            kept = by_broker.keys() <= self.queues.get(topic, {}).keys()
            invariant(bool(by_broker) and kept, f"topic {topic} has a mapping without queues")
        invariant(self.filters.keys() <= self.live.keys(), "filter servers of nobody")


def _drop_inner(table: dict[str, dict[str, T]], topic: str, broker: str) -> None:
    on_brokers = table.get(topic)
    if on_brokers is not None:
        on_brokers.pop(broker, None)
        if not on_brokers:
            del table[topic]


def _refusal(why: str, hint: str) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, f"register broker failed: {why}", hint)
