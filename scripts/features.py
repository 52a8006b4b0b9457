"""The rows and columns of the compatibility table: what a test may name in `@pytest.mark.feature`.

Rule: a feature lists the systems that have it. For each of these there are tests that name both, or a reason in
`NOT_COVERED` why there are none; both at once is an error, as is neither. A system that does not have a feature has a
dash in its row.

Never: says that something works. That is what the results of the tests say.
"""

from __future__ import annotations

from dataclasses import dataclass

SYSTEMS = {
    "rocketmq-5.3": "RocketMQ 5.3",
    "rocketmq-4.9": "RocketMQ 4.9",
    "tubemq": "TubeMQ",
    "fifth-seed": "fifth seed",
    "own": "of our own",
}
"""The columns: Apache RocketMQ in two lines, TubeMQ, the Go design of the fifth seed, and Penstock's additions."""

_BOTH = ("rocketmq-5.3", "rocketmq-4.9")


@dataclass(frozen=True, slots=True)
class Feature:
    title: str
    systems: tuple[str, ...]
    at_rocketmq: bool = False
    """Shown by the cases of a test that run at RocketMQ's servers; otherwise by those at Penstock's."""


FEATURES = {
    # -- protocol and files
    "frames": Feature("frames with JSON and binary headers", _BOTH),
    "nameserver-requests": Feature("requests to a name server", _BOTH),
    "broker-requests": Feature("requests to a broker: messages, offsets, groups", _BOTH),
    "admin-requests": Feature("requests to a broker: administration", _BOTH),
    "store-files": Feature("log, queue and index files, written and read by either", _BOTH),
    "store-after-kill": Feature("stores after a kill of either", _BOTH),
    "store-retention": Feature("stores with deleted files", _BOTH),
    "store-config": Feature("configuration tables (topics, groups, offsets)", _BOTH),
    "store-lock": Feature("lock of a store directory", _BOTH),
    "record-version-2": Feature("records of version 2 (long topics), sealed records", ("rocketmq-5.3",)),
    # -- sending
    "sends": Feature("sends: synchronous, asynchronous, one-way", (*_BOTH, "fifth-seed")),
    "batches": Feature("batches", _BOTH),
    "compression": Feature("compressed bodies", _BOTH),
    "topic-on-demand": Feature("topics made by their first send", (*_BOTH, "fifth-seed")),
    "delay-levels": Feature("delay levels", _BOTH),
    "arbitrary-delay": Feature("delays to any time", ("rocketmq-5.3",)),
    "recall": Feature("recall of delayed messages", ("rocketmq-5.3",)),
    "transactions": Feature("transactions, with checks of open ones", _BOTH),
    "request-reply": Feature("requests with replies", _BOTH),
    "partition-by-key": Feature("a key decides the partition, and leads to its value", ("fifth-seed",)),
    "idempotent-sends": Feature("sends that may be repeated and are stored once", ("own",)),
    # -- consuming
    "clustering": Feature("groups that share a topic (clustering)", (*_BOTH, "fifth-seed")),
    "broadcast": Feature("broadcast to every member", _BOTH),
    "order": Feature("order within a queue", _BOTH),
    "tag-filters": Feature("filters by tag", _BOTH),
    "sql-filters": Feature("filters by SQL92 condition", _BOTH),
    "retries": Feature("retries and dead letters", (*_BOTH, "fifth-seed")),
    "pull": Feature("pull consumers", (*_BOTH, "fifth-seed")),
    "pop": Feature("POP consumers", ("rocketmq-5.3",)),
    "offsets": Feature("offsets kept across restarts; where a new group begins", _BOTH),
    "look-up": Feature("look-up by key and by id", (*_BOTH, "fifth-seed")),
    "point-to-point": Feature("point to point: one group, one consumer per partition", ("fifth-seed",)),
    "publish-subscribe": Feature("publish/subscribe: groups of one", ("fifth-seed",)),
    "keyed-subscriptions": Feature("subscriptions to keys", ("fifth-seed",)),
    "hash-ring": Feature("consistent-hash ring with virtual nodes", ("fifth-seed",)),
    "push": Feature("push by the broker over two-way RPC", ("fifth-seed",)),
    "retained-messages": Feature("consumed messages stay, and can be inspected", (*_BOTH, "fifth-seed")),
    "python-clients": Feature("Penstock's Python clients at RocketMQ's brokers", _BOTH, at_rocketmq=True),
    # -- clusters
    "ha-master": Feature("a RocketMQ slave follows a Penstock master", _BOTH),
    "ha-slave": Feature("a Penstock slave follows a RocketMQ master", _BOTH),
    "controller": Feature("brokers under a controller, masters elected", ("rocketmq-5.3",)),
    "failover": Feature("a broker of the cluster takes over at once", ("fifth-seed",)),
    "registry": Feature("brokers and partitions registered in ZooKeeper", ("fifth-seed",)),
    "partition-placement": Feature("new partitions placed by load, at most ten", ("fifth-seed",)),
    "offsets-in-zookeeper": Feature("offsets in ZooKeeper, in TubeMQ's layout", ("tubemq",)),
    "metadata-store": Feature(
        "metadata of brokers and clients: one writer, copies that may be read", ("tubemq",)
    ),
    "coordinator-balancing": Feature("consumers balanced by the coordinator", ("tubemq",)),
    "heartbeats": Feature("heartbeats with a timeout for each role", (*_BOTH, "tubemq", "fifth-seed")),
    # -- operating
    "mqadmin": Feature("mqadmin", _BOTH),
    "trace": Feature("message traces, written and read", _BOTH),
    "acl": Feature("access control with keys and signatures", _BOTH),
    "tls": Feature("TLS", _BOTH),
    "spark-stores": Feature("stores read by Spark", _BOTH),
}

_CLIENT_ONLY = (
    "not compared: answers are held against those of 5.3; with the same ones the Java client of 4.9 works."
)
_NOT_HERE = "not run: of 4.9 the tests have the Java client and the store classes, no server and no tools."

NOT_COVERED: dict[tuple[str, str], str] = {
    ("nameserver-requests", "rocketmq-4.9"): _CLIENT_ONLY,
    ("broker-requests", "rocketmq-4.9"): _CLIENT_ONLY,
    ("admin-requests", "rocketmq-4.9"): _CLIENT_ONLY,
    ("mqadmin", "rocketmq-4.9"): _NOT_HERE,
    ("trace", "rocketmq-4.9"): _NOT_HERE,
    ("python-clients", "rocketmq-4.9"): _NOT_HERE,
    ("ha-master", "rocketmq-4.9"): _NOT_HERE,
    ("ha-slave", "rocketmq-4.9"): _NOT_HERE,
}
"""Why a system that has a feature has no tests of it: what the cell says and, after a colon, the note below it."""
