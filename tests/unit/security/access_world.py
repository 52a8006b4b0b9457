"""A name server, a coordinator and its broker with access control, two users and an admin; and all that a request
could change in them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock.coordinator.balancing_part import BalancingPart
from penstock.coordinator.options import CoordinatorOptions
from penstock.coordinator.server import Coordinator
from penstock.metadata.group_table import SubscriptionGroup
from penstock.protocol.command import Command
from penstock.remoting import ProcessorTable, RemotingClient
from penstock.runtime import Runtime
from penstock.security import AccessOptions, NodeAccess
from penstock.security.users_file import read_users
from penstock.testing.embedded import BROKER as BROKER_OPTIONS
from penstock.testing.embedded import EmbeddedBroker
from penstock.testing.metadata import MemoryEnsemble
from tests.support.guarded import ADMIN_SECRET, SECRET, caller
from tests.unit.security.every_request import EVERY, Place, R
from tests.waiting import until

OWN, ANOTHERS = Place("orders", "billing"), Place("public", "readers")
INTERNAL = Place("SCHEDULE_TOPIC_XXXX", "CID_ONSAPI_OWNER")
ALL = '["All"]'
USERS = f"""
[users.alice]
secret = "{SECRET}"
entries = [
  {{ resource = "Topic:orders", actions = {ALL} }},
  {{ resource = "Topic:orders_REPLY_TOPIC", actions = {ALL} }},
  {{ resource = "Topic:DefaultCluster_REPLY_TOPIC", actions = ["Pub"] }},
  {{ resource = "Group:billing", actions = {ALL} }},
]

[users.bob]
secret = "{SECRET}"
entries = [
  {{ resource = "Topic:public", actions = {ALL} }},
  {{ resource = "Topic:public_REPLY_TOPIC", actions = {ALL} }},
  {{ resource = "Group:readers", actions = {ALL} }},
]

[users.carol]
secret = "{SECRET}"

[users.star]
secret = "{SECRET}"
entries = [
  {{ resource = "Topic:*", actions = {ALL} }},
  {{ resource = "Topic:SCHEDULE_*", actions = {ALL} }},
  {{ resource = "Group:*", actions = {ALL} }},
  {{ resource = "*", actions = {ALL} }},
]

[users.off]
secret = "{SECRET}"
enabled = false
roles = ["admin"]

[users.spare]
secret = "{SECRET}"
entries = [{{ resource = "Topic:x", actions = {ALL} }}]

[users.admin]
secret = "{ADMIN_SECRET}"
roles = ["admin"]
"""
ALICE = {"access_key": "alice", "secret_key": SECRET}
BOB = {"access_key": "bob", "secret_key": SECRET}
CAROL = {"access_key": "carol", "secret_key": SECRET}
STAR = {"access_key": "star", "secret_key": SECRET}
ADMIN = {"access_key": "admin", "secret_key": ADMIN_SECRET}


@dataclass
class World:
    """The three servers, and whose things are where."""

    directory: Path
    server: EmbeddedBroker
    coordinator: Coordinator
    access: NodeAccess
    own: Place = OWN
    anothers: Place = ANOTHERS
    internal: Place = INTERNAL
    clients: dict[str, RemotingClient] = field(default_factory=dict)

    def address(self, server: str) -> str:
        return {
            "broker": self.server.broker_address,
            "nameserver": self.server.address,
            "coordinator": self.coordinator.address,
        }[server]

    async def ask(self, client: RemotingClient, server: str, command: Command) -> Command:
        return await client.call(self.address(server), command, 20_000)

    def tables(self) -> dict[str, ProcessorTable]:
        """Which requests each server answers, the broker also on its other port."""
        broker = self.server.broker
        assert broker is not None
        return {
            "broker": broker.table,
            "broker on its VIP port": broker.vip_table,
            "nameserver": self.server.nameserver.table,
            "coordinator": self.coordinator.table,
        }

    def prepare(self) -> None:
        """What an allowed request may have taken away."""
        broker, guard = self.server.broker, self.access.guard
        assert broker is not None
        assert guard is not None
        for place in (self.own, self.anothers):
            broker.topics.ensure(place.topic, 2)
            if broker.groups.find(place.group) is None:
                broker.groups.update(SubscriptionGroup(place.group))
        users = read_users(USERS.encode(), "users")
        if guard.users != users:
            guard.change(users)

    def state(self) -> dict[str, str]:
        """Everything that a request could change, as far as it does not change by itself."""
        broker, guard = self.server.broker, self.access.guard
        assert broker is not None
        assert guard is not None
        groups = sorted(broker.consumers.all(), key=lambda group: group.name)
        places = [(place.group, place.topic) for place in (self.own, self.anothers, self.internal)]
        routes = self.server.nameserver.routes
        found: dict[str, object] = {
            "log": broker.store.log.max_offset,
            "topics": sorted(broker.topics.all().items()),
            "groups": sorted(broker.groups.all().items()),
            "forbidden": broker.groups.forbidden(),
            "offsets": broker.offsets.snapshot(),
            "resets": [broker.offsets.has_reset(group, topic, 0) for group, topic in places],
            "modes": broker.modes.snapshot(),
            "consumers": [(group.name, group.client_ids, sorted(group.subscriptions)) for group in groups],
            "producers": [(name, len(members)) for name, members in broker.producers.groups()],
            "locks": [broker.locks.is_locked(group) for group, _ in places],
            "leases": [broker.leases.holder(group, topic, 0) for group, topic in places],
            "pushed": sorted(broker.push.state.clients),
            "options": broker.options,
            "users": guard.users,
            "file": (self.directory / "access.toml").read_text(),
            "live": sorted(routes.live),
            "routes": routes.queues,
            "kv": self.kv(),
            "sets": self.coordinator.sets.records(),
            "balance": self.coordinator.status().get("clients"),
        }
        return {name: repr(value) for name, value in found.items()}

    def kv(self) -> str:
        path = self.directory / "kv.json"
        return path.read_text() if path.exists() else ""


@asynccontextmanager
async def world(tmp_path: Path) -> AsyncIterator[World]:
    (tmp_path / "access.toml").write_text(USERS)
    runtime = Runtime.system()
    # Read when the test starts; a change on disk is made by this process alone.
    options = AccessOptions(enabled=True, cluster_secret="cluster-" + SECRET, reload_interval_ms=86_400_000)
    access = NodeAccess.of(options, tmp_path, runtime)
    coordinator = Coordinator(
        # However long this process is stopped, the broker stays master: what changes by itself is no finding.
        CoordinatorOptions(port=0, master_lease_ms=60_000, broker_silent_ms=60_000),
        MemoryEnsemble().client(),
        runtime=runtime,
        access=access,
        parts=(BalancingPart,),
    )
    async with AsyncExitStack() as stack:
        await coordinator.start()
        stack.push_async_callback(coordinator.stop)
        server = EmbeddedBroker(
            tmp_path / "data",
            broker=replace(BROKER_OPTIONS, coordinators=(coordinator.address,)),
            access=access,
        )
        await server.start()
        stack.push_async_callback(server.stop)
        made = World(tmp_path, server, coordinator, access)
        broker = server.broker
        assert broker is not None
        await until(lambda: broker.options.broker_id == 0 and broker.push.is_running, "the broker is master")
        for name, keys in (
            ("alice", ALICE),
            ("bob", BOB),
            ("carol", CAROL),
            ("star", STAR),
            ("admin", ADMIN),
        ):
            made.clients[name] = await stack.enter_async_context(caller(keys))
        made.prepare()
        await _fill(made)
        yield made


async def _fill(made: World) -> None:
    """A message in each place, and the topics known to the name server."""
    admin, positions = made.clients["admin"], []
    broker = made.server.broker
    assert broker is not None
    for place in (made.own, made.anothers):
        positions.append(broker.store.log.max_offset)
        answer = await made.ask(admin, "broker", EVERY[R.SEND_MESSAGE_V2](place))
        assert answer.code == 0, answer
    positions.append(broker.store.log.max_offset)
    delayed = EVERY[R.SEND_MESSAGE_V2](made.own)
    delayed.fields["i"] += "DELAY\x0118\x02"
    assert (await made.ask(admin, "broker", delayed)).code == 0
    made.own, made.anothers, made.internal = (
        place._replace(position=position)
        for place, position in zip((made.own, made.anothers, made.internal), positions, strict=True)
    )
    await broker.registration.wait_registered(20_000)
