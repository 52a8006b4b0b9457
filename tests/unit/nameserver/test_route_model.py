"""Random registrations, departures and silences against a model that is too simple to be wrong."""

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.errors import RequestError
from penstock.nameserver.route_answers import cluster_info, topic_route, topics_of_cluster
from tests.support.nameserver_brokers import registration, route_table, topic, version

BROKERS = ("broker-a", "broker-b")
CLUSTERS = ("c", "d")
ADDRESSES = tuple(f"10.0.0.{n}:10911" for n in range(1, 5))
TOPICS = ("T", "U", "V")
CONNECTIONS = st.integers(1, 3)


@dataclass
class Member:
    """A process as the model knows it."""

    broker: str
    cluster: str
    address: str
    connection: int
    heard_ms: int
    expiry_ms: int
    broker_id: int | None
    counter: int
    state: int


@dataclass
class Model:
    """All processes, whether or not another has taken their id, and which topics each broker has said it has."""

    members: list[Member] = field(default_factory=list)
    topics: set[tuple[str, str]] = field(default_factory=set)

    def at(self, cluster: str, address: str) -> Member | None:
        return next((m for m in self.members if (m.cluster, m.address) == (cluster, address)), None)

    def holders(self, broker: str) -> dict[int, Member]:
        return {m.broker_id: m for m in self.members if m.broker == broker and m.broker_id is not None}

    def remove(self, member: Member) -> None:
        self.members.remove(member)
        if not self.holders(member.broker):
            self.topics = {(name, broker) for name, broker in self.topics if broker != member.broker}


class RouteMachine(RuleBasedStateMachine):
    """Each rule does the same to the table and to the model."""

    def __init__(self) -> None:
        super().__init__()
        self.table = route_table()
        self.model = Model()
        self.now = 1_000_000
        self.shown: tuple[int, list[bytes]] = (-1, [])

    @rule(
        broker=st.sampled_from(BROKERS),
        cluster=st.sampled_from(("c", "c", "c", "d")),
        broker_id=st.sampled_from((0, 0, 1, 2)),
        address=st.sampled_from(ADDRESSES),
        connection=CONNECTIONS,
        names=st.sets(st.sampled_from(TOPICS)),
        counter=st.integers(1, 2),
        state=st.sampled_from((0, 0, 1)),
        expiry=st.sampled_from((10_000, 120_000)),
    )
    def register(
        self,
        broker: str,
        cluster: str,
        broker_id: int,
        address: str,
        connection: int,
        names: set[str],
        counter: int,
        state: int,
        expiry: int,
    ) -> None:
        asked = registration(
            broker,
            broker_id,
            address,
            cluster=cluster,
            connection=connection,
            topics={name: topic(name) for name in names},
            data_version=version(counter, state),
            expiry_ms=expiry,
            digest=repr((sorted(names), counter, state)).encode(),
        )
        is_repeated = self.table.is_repeated(cluster, broker, broker_id, address, asked.digest)
        queues = {name: dict(on_brokers) for name, on_brokers in self.table.queues.items()}
        model = self.model
        before = model.at(cluster, address)
        if before is not None and before.broker != broker:
            if before.connection != connection:
                self.refused(asked)
                return
            model.remove(before)
            before = None
        holders = model.holders(broker)
        if any(member.cluster != cluster for member in holders.values()):
            self.refused(asked)
            return
        holder = holders.get(broker_id)
        if holder is not None and holder is not before and holder.state > state:
            self.table.register(asked, self.now)
            if before is not None:
                model.remove(before)
            return
        if len(names) == 1 and holder is None:
            self.refused(asked)
            return
        self.table.register(asked, self.now)
        if is_repeated:
            assert self.table.queues == queues, "reading the body again would have been in vain"
        if holder is not None:
            holder.broker_id = None
        if before is not None:
            model.members.remove(before)
        model.members.append(
            Member(broker, cluster, address, connection, self.now, expiry, broker_id, counter, state)
        )
        if broker_id == 0:
            model.topics |= {(name, broker) for name in names}

    def refused(self, asked: object) -> None:
        with pytest.raises(RequestError):
            self.table.register(asked, self.now)  # type: ignore[arg-type]

    @precondition(lambda self: self.model.members)
    @rule(data=st.data())
    def unregister(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.model.members))
        self.table.unregister(member.cluster, member.broker, member.address)
        self.model.remove(member)

    @precondition(lambda self: self.model.members)
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.model.members))
        assert self.table.touch(member.cluster, member.address, self.now)
        member.heard_ms = self.now

    @rule(connection=CONNECTIONS)
    def lose_connection(self, connection: int) -> None:
        removed = self.table.drop_connection(connection)
        gone = [member for member in self.model.members if member.connection == connection]
        assert {item.place for item in removed} == {(m.cluster, m.address) for m in gone}
        for member in gone:
            self.model.remove(member)

    @rule(passed_ms=st.sampled_from((1, 5_000, 10_000, 115_000)))
    def let_time_pass(self, passed_ms: int) -> None:
        self.now += passed_ms

    @rule()
    def expire(self) -> None:
        removed = self.table.expire(self.now)
        gone = [m for m in self.model.members if m.heard_ms + m.expiry_ms < self.now]
        assert {item.place for item in removed} == {(m.cluster, m.address) for m in gone}
        for member in gone:
            self.model.remove(member)

    @rule(broker=st.sampled_from(BROKERS), is_wiped=st.booleans())
    def change_permission(self, broker: str, is_wiped: bool) -> None:
        change = self.table.wipe_write_permission if is_wiped else self.table.add_write_permission
        assert change(broker) == sum(found == broker for _, found in self.model.topics)

    @rule(name=st.sampled_from(TOPICS), cluster=st.sampled_from((None, *CLUSTERS)))
    def delete_topic(self, name: str, cluster: str | None) -> None:
        self.table.delete_topic(name, cluster)
        if cluster is None:
            hit = set(BROKERS)
        else:
            hit = {m.broker for m in self.model.members if m.cluster == cluster and m.broker_id is not None}
        self.model.topics -= {(name, broker) for broker in hit}

    @invariant()
    def tables_agree_with_themselves(self) -> None:
        self.table.validate()

    @invariant()
    def live_table_is_the_models(self) -> None:
        assert {place: live.heard_ms for place, live in self.table.live.items()} == {
            (member.cluster, member.address): member.heard_ms for member in self.model.members
        }

    @invariant()
    def brokers_are_the_models(self) -> None:
        shown = cluster_info(self.table)
        for broker in BROKERS:
            wanted = {id_: member.address for id_, member in self.model.holders(broker).items()}
            found = shown.broker_addr_table.get(broker)
            assert (found.broker_addrs if found else {}) == wanted

    @invariant()
    def routes_are_the_models(self) -> None:
        for name in TOPICS:
            wanted = sorted(broker for found, broker in self.model.topics if found == name)
            route = topic_route(self.table, name)
            assert [data.broker_name for data in (route.queue_datas if route else ())] == wanted
            assert [data.broker_name for data in (route.broker_datas if route else ())] == wanted
        for cluster in CLUSTERS:
            names = {m.broker for m in self.model.members if m.cluster == cluster and m.broker_id is not None}
            wanted = sorted({name for name, broker in self.model.topics if broker in names})
            assert list(topics_of_cluster(self.table, cluster).topics) == wanted

    @invariant()
    def answers_change_only_with_the_count_of_changes(self) -> None:
        routes = [topic_route(self.table, name) for name in TOPICS]
        now = [route.encode() if route else b"" for route in routes]
        now.append(cluster_info(self.table).encode())
        if self.shown[0] == self.table.changes:
            assert self.shown[1] == now
        self.shown = (self.table.changes, now)


TestRouteModel = RouteMachine.TestCase
