"""The route table as clients and administrators are shown it.

Rules: an answer never changes the table. Brokers and names are sorted, so that two name servers with the same
brokers give the same answer. `dialled_ip` is the address under which the asker reached this server: it
replaces the host of brokers that advertise none (identity.py). Pure functions.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.nameserver.route_table import Place, RouteTable
from penstock.protocol.bodies.route import (
    MASTER_ID,
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    LostBroker,
    QueueData,
    TopicList,
    TopicRouteData,
)
from penstock.protocol.identity import seen_from

# Topics by which the members of a broker find each other; an acting master must not take them over.
SYNC_MEMBER_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
UNIT_FLAG = 1
UNIT_SUBSCRIBED_FLAG = 2


def topic_route(
    table: RouteTable, topic: str, dialled_ip: str = "", *, acting_master: bool = False
) -> TopicRouteData | None:
    """Where a topic lives, or None if nobody has it."""
    on_brokers = table.queues.get(topic)
    if not on_brokers:
        return None
    queues = tuple(on_brokers[name] for name in sorted(on_brokers))
    brokers = [table.brokers[data.broker_name] for data in queues if data.broker_name in table.brokers]
    if not brokers:
        return None
    filters = {
        seen_from(address, dialled_ip): table.filters[Place(broker.cluster, address)]
        for broker in brokers
        for address in broker.broker_addrs.values()
        if Place(broker.cluster, address) in table.filters
    }
    if acting_master and not topic.startswith(SYNC_MEMBER_PREFIX):
        brokers = [_with_acting_master(broker, on_brokers) for broker in brokers]
    mapping = table.mappings.get(topic)
    return TopicRouteData(
        broker_datas=tuple(_shown(broker, dialled_ip) for broker in brokers),
        queue_datas=queues,
        filter_server_table=filters,
        queue_mapping=None if mapping is None else dict(mapping),
    )


def within_zone(route: TopicRouteData, zone: str) -> TopicRouteData:
    """Only the brokers of a zone, and those of others whose master is gone: their messages must be read too."""
    kept = tuple(broker for broker in route.broker_datas if broker.zone_name == zone or broker.master is None)
    names = {broker.broker_name for broker in kept}
    addresses = {address for broker in kept for address in broker.broker_addrs.values()}
    return replace(
        route,
        broker_datas=kept,
        queue_datas=tuple(data for data in route.queue_datas if data.broker_name in names),
        filter_server_table={a: list_ for a, list_ in route.filter_server_table.items() if a in addresses},
    )


def cluster_info(table: RouteTable, dialled_ip: str = "", lost: tuple[LostBroker, ...] = ()) -> ClusterInfo:
    return ClusterInfo(
        {name: _shown(table.brokers[name], dialled_ip) for name in sorted(table.brokers)},
        {cluster: tuple(sorted(table.clusters[cluster])) for cluster in sorted(table.clusters)},
        tuple(replace(one, address=seen_from(one.address, dialled_ip)) for one in lost),
    )


def member_group(table: RouteTable, cluster: str, broker: str, dialled_ip: str = "") -> BrokerMemberGroup:
    """The addresses under a broker name; none if it is not known in that cluster."""
    found = table.brokers.get(broker)
    if found is None or found.cluster != cluster:
        return BrokerMemberGroup(cluster, broker)
    return BrokerMemberGroup(cluster, broker, _shown(found, dialled_ip).broker_addrs)


def all_topics(table: RouteTable) -> TopicList:
    return TopicList(tuple(sorted(table.queues)))


def topics_of_cluster(table: RouteTable, cluster: str) -> TopicList:
    brokers = table.clusters.get(cluster, set())
    return TopicList(
        tuple(topic for topic in sorted(table.queues) if not brokers.isdisjoint(table.queues[topic]))
    )


def system_topics(table: RouteTable, dialled_ip: str = "") -> TopicList:
    """Topics are named after clusters and brokers; a broker, whose address goes along, knows the others."""
    names = {*table.clusters, *table.brokers}
    known = [table.brokers[name].any_address for name in sorted(table.brokers)]
    address = next((seen_from(address, dialled_ip) for address in known if address), None)
    return TopicList(tuple(sorted(names)), address)


def unit_topics(table: RouteTable) -> TopicList:
    return _by_flags(table, UNIT_FLAG, UNIT_FLAG)


def unit_subscribed_topics(table: RouteTable) -> TopicList:
    return _by_flags(table, UNIT_SUBSCRIBED_FLAG, UNIT_SUBSCRIBED_FLAG)


def unit_subscribed_other_topics(table: RouteTable) -> TopicList:
    """Topics with unit subscribers that are no unit topics themselves."""
    return _by_flags(table, UNIT_FLAG | UNIT_SUBSCRIBED_FLAG, UNIT_SUBSCRIBED_FLAG)


def _by_flags(table: RouteTable, mask: int, wanted: int) -> TopicList:
    return TopicList(
        tuple(
            topic
            for topic in sorted(table.queues)
            if any(data.topic_sys_flag & mask == wanted for data in table.queues[topic].values())
        )
    )


def _with_acting_master(broker: BrokerData, on_brokers: dict[str, QueueData]) -> BrokerData:
    """With the smallest id as master, while there is none and nobody may write."""
    if (
        broker.master is not None
        or not broker.enable_acting_master
        or on_brokers[broker.broker_name].is_writable
    ):
        return broker
    addresses = dict(broker.broker_addrs)
    addresses[MASTER_ID] = addresses.pop(min(addresses))
    return replace(broker, broker_addrs=addresses)


def _shown(broker: BrokerData, dialled_ip: str) -> BrokerData:
    addresses = broker.broker_addrs
    return replace(broker, broker_addrs={id_: seen_from(addresses[id_], dialled_ip) for id_ in addresses})
