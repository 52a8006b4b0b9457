"""Registrations as brokers make them, for the tests of this folder."""

from penstock.metadata.config_files import DataVersion
from penstock.metadata.topic_table import Permission, TopicConfig
from penstock.nameserver.options import NameServerOptions
from penstock.nameserver.route_table import Registration, RouteTable

EXPIRY_MS = 120_000


def topic(name: str, queues: int = 4, perm: int = 6, sys_flag: int = 0) -> TopicConfig:
    return TopicConfig(name, queues, queues, Permission(perm), sys_flag=sys_flag)


def topics(*names: str, **changes: int) -> dict[str, TopicConfig]:
    """A broker's table. It always has topics of its own, so never just one."""
    return {name: topic(name, **changes) for name in ("TBW102", "SELF_TEST_TOPIC", *names)}


def version(counter: int = 1, state: int = 0, timestamp: int = 1_700_000_000_000) -> DataVersion:
    return DataVersion(state, counter, timestamp)


def registration(
    broker: str = "broker-a", broker_id: int = 0, address: str = "10.0.0.1:10911", **changes: object
) -> Registration:
    values: dict[str, object] = {
        "cluster": "c",
        "broker": broker,
        "broker_id": broker_id,
        "address": address,
        "connection": 1,
        "ha_address": address.replace(":10911", ":10912"),
        "topics": topics("T"),
        "data_version": version(),
        "expiry_ms": EXPIRY_MS,
    }
    return Registration(**{**values, **changes})  # type: ignore[arg-type]


def route_table(**options: object) -> RouteTable:
    return RouteTable(NameServerOptions(**options))  # type: ignore[arg-type]
