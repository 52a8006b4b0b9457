"""A broker tells its store how far the groups are that retention waits for; a restart forgets nothing of it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import penstock
from penstock.broker.offsets import ConsumerOffsets
from penstock.broker.options import BrokerOptions
from penstock.broker.retention_groups import RetentionGroups
from penstock.runtime import Runtime
from penstock.testing import broker
from tests.unit.broker.journals import journal
from tests.waiting import wait_until

HOURS_AGO_S = 1_000 * 3_600
STORE = {
    "segment_size_bytes": 64 << 10,
    "max_message_size_bytes": 16 << 10,
    "retention_groups": ("archive",),
    "clean_interval_ms": 20,
    "delete_when": ";".join(f"{hour:02d}" for hour in range(24)),
}
BODY = bytes(4_000)
WAIT_S = 20


def segments(data: Path) -> list[Path]:
    return sorted((data / "commitlog").iterdir())


def age(data: Path) -> None:
    """All segments but the one being written were last written long ago."""
    for path in segments(data)[:-1]:
        os.utime(path, (time.time() - HOURS_AGO_S,) * 2)


def rounds(count: int = 10) -> None:
    """Let retention look a few times."""
    time.sleep(count * STORE["clean_interval_ms"] / 1000)


def test_a_segment_stays_until_the_group_has_committed_behind_it(tmp_path: Path) -> None:
    with broker(tmp_path, store=STORE) as address:
        with penstock.Admin(address) as admin, penstock.Producer(address) as producer:
            admin.create_topic("orders", 1)
            queue = admin.queues("orders")[0]
            with penstock.Consumer(address, group="archive", start_from="first") as consumer:
                consumer.assign([queue])
                producer.send("orders", BODY, queue=queue)
                wait_until(lambda: consumer.poll(1))
                consumer.commit()
            for _ in range(60):
                producer.send("orders", BODY, queue=queue)
        before = len(segments(tmp_path))
        assert before > 3
        age(tmp_path)
        rounds()
        assert len(segments(tmp_path)) == before
    # After a restart nothing may go before the offsets are read.
    with broker(tmp_path, store=STORE) as address:
        age(tmp_path)
        rounds()
        assert len(segments(tmp_path)) == before
        with penstock.Consumer(address, group="archive", start_from="first") as consumer:
            consumer.assign([queue])
            taken = 0
            while taken < 60:
                taken += len(wait_until(consumer.poll))
            consumer.commit()
        wait_until(lambda: len(segments(tmp_path)) < before)


def test_the_first_offset_in_a_topic_counts_at_once(tmp_path: Path) -> None:
    """Not when retention looks next: until then it could take what an archive is about to read."""
    told = []
    store = SimpleNamespace(
        options=SimpleNamespace(retention_groups=("archive",)), keeper=SimpleNamespace(keep=told.append)
    )
    offsets = ConsumerOffsets(BrokerOptions(), Runtime.system(), journal(tmp_path))
    groups = RetentionGroups(offsets, store, SimpleNamespace(needed=lambda: None))
    offsets.commit("archive", "early", 0, 1)
    assert told == [], "who leads says so first"
    groups.tell()
    offsets.commit("others", "orders", 0, 5)
    assert len(told) == 1
    offsets.commit("archive", "orders", 0, 0)
    assert [needed.offsets for needed in told] == [
        (("early", {0: 1}),),
        (("early", {0: 1}), ("orders", {0: 0})),
    ]
    offsets.commit("archive", "orders", 0, 7)
    assert len(told) == 2, "later ones only let go, which has time"
    groups.tell_of_timers()
    offsets.commit("archive", "third", 0, 0)
    assert len(told) == 2, "a slave follows what its master decides"
