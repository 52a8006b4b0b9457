"""The messages that both sides write: everything a record, a queue entry or an index entry can differ in.

Rule: the same call gives the same messages, whoever writes them and on whichever day. What the disk must hold
afterwards is computed here from the messages and the writer's own answers, without the code under test.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from tests.interop.java_messages import BatchSpec, MessageSpec, PutResult, StoredMessage, TimeQuestion

Spec = MessageSpec | BatchSpec
QueueKey = tuple[str, int]

EVENTS_COUNT = 2300
STORE_HOST = "127.0.0.1:10911"
STORE_HOST_V6 = "[2001:db8::7]:10911"
BORN_HOST_V6 = "[fe80::1:2]:61000"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
LONGEST_V1_TOPIC = "T" * 127
V2_TOPIC = "%RETRY%" + "g" * 200
TAGS = ("TagA", "TagB", "", "标签", "café", "😀 tag", "polygenelubricants")
PREPARED, COMMITTED, ROLLED_BACK = 0x4, 0x8, 0xC
KEYS_MAX = 64


def workload(*, with_version_2: bool, seed: int = 2) -> list[Spec]:
    """Some 3000 messages of 4 MB: several segments, queue files and index files of the small sizes. The last
    part has an IPv6 store host, which Penstock fixes per opened store."""
    chance = random.Random(seed)
    specs: list[Spec] = [*_events(), *_orders(chance), *_large(chance), *_batches(chance), *_edge_cases()]
    if with_version_2:
        specs += [_spec(V2_TOPIC, i % 2, b"v2 %d" % i, KEYS=f"v2-{i}", TAGS="TagA") for i in range(12)]
    chance.shuffle(specs)
    late = len(specs) - len(specs) // 6
    return [*specs[:late], *(_from_v6_broker(spec) for spec in specs[late:])]


def more_messages(count: int, name: str, store_host: str = STORE_HOST) -> list[Spec]:
    """A few messages for the queues of `workload`, told apart by `name`."""
    return [
        replace(
            _spec("orders", i % 4, f"{name} {i}".encode() * 40, KEYS=f"{name} {name}-{i}", TAGS=TAGS[i % 2]),
            store_host=store_host,
        )
        for i in range(count)
    ]


def queries(*, with_version_2: bool) -> list[tuple[str, str]]:
    """Keys worth asking for: many hits, one, none, equal hashes, other alphabets, other kinds of messages."""
    asked = [
        ("events", "shared"),
        ("events", "k0"),
        ("events", f"k{EVENTS_COUNT - 1}"),
        ("events", f"{7:032X}"),
        ("orders", "shared"),
        ("orders", "order-17"),
        ("orders", "鍵"),
        ("orders", "😀"),
        ("orders", "Aa"),
        ("orders", "BB"),
        ("orders", "last"),
        ("orders", "nobody"),
        ("batched", "batch-3"),
        ("large", "large-35"),
        (LONGEST_V1_TOPIC, "long"),
        (HALF_TOPIC, "half"),
        (HALF_TOPIC, "rolled-back"),
        ("orders", "committed"),
        ("no-such-topic", "k0"),
    ]
    return [*asked, (V2_TOPIC, "v2-3")] if with_version_2 else asked


def times(records: Sequence[StoredMessage]) -> list[TimeQuestion]:
    """Times in, between, before and after those of two queues; many messages have the same."""
    asked = []
    for key in (("events", 0), ("orders", 1)):
        stored = sorted({record.store_timestamp_ms for record in in_queues(records)[key]})
        moments = {stored[0], stored[-1], *stored[:: max(len(stored) // 20, 1)]}
        for time_ms in sorted({moment + step for moment in moments for step in (-1, 0, 1)}):
            asked += [TimeQuestion(*key, time_ms, boundary) for boundary in ("LOWER", "UPPER")]
    return asked


def _spec(topic: str, queue_id: int, body: bytes, **properties: str) -> MessageSpec:
    return MessageSpec(topic, queue_id, body, {name: text for name, text in properties.items() if text})


def _events() -> list[MessageSpec]:
    return [
        _spec(
            "events",
            0,
            f"event {i}".encode(),
            UNIQ_KEY=f"{i:032X}",
            KEYS=f"shared k{i}",
            TAGS=TAGS[i % len(TAGS)],
        )
        for i in range(EVENTS_COUNT)
    ]


def _orders(chance: random.Random) -> list[MessageSpec]:
    specs = []
    for i in range(240):
        spec = _spec(
            "orders",
            i % 4,
            chance.randbytes(chance.randrange(4000)),
            KEYS=f"order-{i}",
            TAGS=chance.choice(TAGS),
            note=chance.choice(("", "plain", "ünïcode ≠ ascii", "a=b;c,d")),
        )
        specs.append(
            replace(
                spec,
                flag=chance.choice((0, 1, -1, 2**31 - 1, -(2**31))),
                sys_flag=chance.choice((0, 0, 0x1, 0x2, 0x301)),
                born_timestamp_ms=chance.choice((0, 1_700_000_000_000 + i, 2**62)),
                born_host=chance.choice(("10.1.2.3:0", "255.255.255.255:65535", BORN_HOST_V6)),
                reconsume_times=chance.choice((0, 0, 1, 16)),
            )
        )
    return specs


def _large(chance: random.Random) -> list[MessageSpec]:
    sizes = [50_000 + chance.randrange(40_000) for _ in range(36)]
    return [_spec("large", 0, chance.randbytes(size), KEYS=f"large-{i}") for i, size in enumerate(sizes)]


def _batches(chance: random.Random) -> list[BatchSpec]:
    return [
        BatchSpec(
            tuple(
                replace(
                    _spec(
                        "batched",
                        i % 2,
                        chance.randbytes(chance.randrange(0, 300)),
                        KEYS=f"batch-{i}",
                        TAGS=TAGS[n % len(TAGS)],
                    ),
                    flag=n,
                    born_host=BORN_HOST_V6 if i % 3 == 0 else "10.9.8.7:6543",
                )
                for n in range(chance.randrange(1, 24))
            )
        )
        for i in range(30)
    ]


def _edge_cases() -> list[MessageSpec]:
    return [
        _spec("orders", 0, b""),
        _spec("orders", 1, b"", TAGS="TagA", KEYS="empty"),
        _spec("orders", 2, "Grüße, 世界 😀".encode(), KEYS="鍵 😀", TAGS="😀"),
        _spec("orders", 3, bytes(range(256)), KEYS=" first   middle  last "),
        # Java's hash of these two keys is the same.
        _spec("orders", 0, b"one", KEYS="Aa"),
        _spec("orders", 0, b"other", KEYS="BB"),
        _spec("orders", 2**31 - 1, b"the highest queue id"),
        _spec("orders", 1, b"wide properties", filler="x" * 32_000),
        _spec("%RETRY%group|a-b_c", 0, b"every character that a topic may have"),
        _spec(LONGEST_V1_TOPIC, 0, b"the longest name of version 1", KEYS="long"),
        *(
            replace(_spec(HALF_TOPIC, 0, b"half %d" % i, KEYS=f"half half-{i}"), sys_flag=PREPARED)
            for i in range(5)
        ),
        replace(_spec(HALF_TOPIC, 0, b"rolled back", KEYS="rolled-back"), sys_flag=ROLLED_BACK),
        replace(
            _spec("orders", 1, b"committed", KEYS="committed", TAGS="TagB"),
            sys_flag=COMMITTED,
            prepared_transaction_offset=123_456_789,
        ),
        # The longest delay, so that no release delivers it while a test looks. 4.9 adds the two REAL_ properties
        # itself, with these values.
        *(
            _spec(
                SCHEDULE_TOPIC,
                17,
                b"later %d" % i,
                DELAY="18",
                REAL_TOPIC=SCHEDULE_TOPIC,
                REAL_QID="17",
                TAGS="TagA",
            )
            for i in range(3)
        ),
    ]


def _from_v6_broker(spec: Spec) -> Spec:
    if isinstance(spec, BatchSpec):
        return BatchSpec(tuple(replace(message, store_host=STORE_HOST_V6) for message in spec.messages))
    return replace(spec, store_host=STORE_HOST_V6)


# -- what must be on disk afterwards -------------------------------------------------------------------------


def expected_record(
    spec: MessageSpec, *, queue_offset: int, position: int, size_bytes: int, store_timestamp_ms: int
) -> StoredMessage:
    """The record of a message that its writer said to be at this place."""
    version_6 = 0x10 * spec.born_host.startswith("[") | 0x20 * spec.store_host.startswith("[")
    return StoredMessage(
        topic=spec.topic,
        queue_id=spec.queue_id,
        queue_offset=queue_offset,
        physical_offset=position,
        size_bytes=size_bytes,
        body_crc=zlib.crc32(spec.body) & 0x7FFFFFFF,
        body=spec.body,
        properties=dict(spec.properties),
        flag=spec.flag,
        sys_flag=spec.sys_flag | version_6,
        born_timestamp_ms=spec.born_timestamp_ms,
        born_host=spec.born_host,
        store_timestamp_ms=store_timestamp_ms,
        store_host=spec.store_host,
        reconsume_times=spec.reconsume_times,
        prepared_transaction_offset=spec.prepared_transaction_offset,
        message_id=_message_id(spec.store_host, position),
    )


def _message_id(store_host: str, position: int) -> str:
    hosts = {STORE_HOST: "7F000001", STORE_HOST_V6: "20010DB8000000000000000000000007"}
    return f"{hosts[store_host]}{10911:08X}{position:016X}"


def expected_of_java(specs: Sequence[Spec], puts: Sequence[PutResult]) -> list[StoredMessage]:
    """The records of messages that Java put, in log order, by its own answers."""
    records = []
    for spec, put in zip(specs, puts, strict=True):
        messages = spec.messages if isinstance(spec, BatchSpec) else (spec,)
        positions = [int(message_id[-16:], 16) for message_id in put.message_ids]
        ends = [*positions, put.physical_offset + put.size_bytes]
        for n, (message, (position, end)) in enumerate(zip(messages, pairwise(ends), strict=True)):
            has_queue_offset = message.sys_flag & 0xC in (0, COMMITTED)
            records.append(
                expected_record(
                    message,
                    queue_offset=put.queue_offset + n if has_queue_offset else 0,
                    position=position,
                    size_bytes=end - position,
                    store_timestamp_ms=put.store_timestamp_ms,
                )
            )
    return records


def in_queues(records: Iterable[StoredMessage]) -> dict[QueueKey, list[StoredMessage]]:
    """Records by queue, in log order; half and rolled-back messages are in none."""
    queues: dict[QueueKey, list[StoredMessage]] = {}
    for record in records:
        if record.sys_flag & 0xC in (0, COMMITTED):
            queues.setdefault((record.topic, record.queue_id), []).append(record)
    return queues


def with_key(records: Iterable[StoredMessage], topic: str, key: str) -> list[StoredMessage]:
    """The newest records of a topic that have a key, newest first, as many as a query gives; rolled-back
    messages are not indexed."""
    found = [
        record
        for record in records
        if record.topic == topic and record.sys_flag & 0xC != ROLLED_BACK and key in keys_of(record)
    ]
    return sorted(found, key=lambda record: -record.physical_offset)[:KEYS_MAX]


def keys_of(record: StoredMessage) -> set[str]:
    """The unique key and the words of KEYS."""
    return {record.properties.get("UNIQ_KEY", ""), *record.properties.get("KEYS", "").split(" ")} - {""}
