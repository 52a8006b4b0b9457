"""Limits of what a broker remembers of idempotent sends: over them a send is refused, and nothing is stored twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.runtime import Runtime
from penstock.testing import ManualClock
from tests.abuse.limits import limit
from tests.abuse.test_limits_broker import with_broker
from tests.support.idempotent_sends import bodies, send, send_batch
from tests.support.running_broker import Bench


@pytest.mark.abuse("A14")
@limit("broker.idempotence_queues_max")
def test_more_producers_than_are_remembered_are_refused_as_busy(tmp_path: Path) -> None:
    clock = ManualClock()

    async def test(bench: Bench) -> None:
        for number in range(5):
            assert (await send(bench.client, 1, producer=f"p{number}", topic="U")).code == 0
        for _ in range(2):
            refused = await send(bench.client, 1, producer="one more", topic="U")
            assert refused.code == 13, "no name"
            refused = await send(bench.client, 1, producer="one-more", topic="U")
            assert refused.code == 2
            assert "idempotence_queues_max" in (refused.remark or "")
            assert int(refused.fields["penstockRetryAfterMs"]) > 0
        # Those that are known go on, and are recognised.
        assert (await send(bench.client, 2, producer="p0", topic="U")).fields["penstockRepeated"] == "false"
        assert (await send(bench.client, 1, producer="p4", topic="U")).fields["penstockRepeated"] == "true"
        assert len(bench.broker.sequences.table) == 5
        # Whoever sent nothing for the expiry time makes room.
        clock.advance(60_001)
        assert (await send(bench.client, 1, producer="one-more", topic="U")).code == 0
        assert len(bench.broker.sequences.table) < 5

    with_broker(
        tmp_path,
        test,
        idempotence_queues_max=5,
        idempotence_expiry_ms=60_000,
        runtime=Runtime(clock=clock),
    )


@pytest.mark.abuse("A14")
@limit("broker.idempotence_sequences_max")
def test_more_sequences_than_are_kept_are_refused_when_they_come_again(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        for number in range(10):
            for sequence in range(10):
                assert (await send(bench.client, sequence, producer=f"p{number}", topic="U")).code == 0
        table = bench.broker.sequences.table
        assert table.count <= 40
        refused = await send(bench.client, 9, producer="p0", topic="U")
        assert (refused.code, refused.fields["penstockOutcome"]) == (13, "unknown")
        assert (await send(bench.client, 9, producer="p9", topic="U")).fields["penstockRepeated"] == "true"
        assert (await send(bench.client, 10, producer="p0", topic="U")).fields["penstockRepeated"] == "false"
        assert len(await bodies(bench, topic="U")) == 101

    with_broker(tmp_path, test, idempotence_sequences_max=40)


@pytest.mark.abuse("A14")
def test_a_batch_larger_than_the_window_is_refused_before_it_is_stored(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        refused = await send_batch(bench.client, 0, [b"x"] * 17, 1)
        assert refused.code == 13
        assert "the limit is 16" in (refused.remark or "")
        assert (await send_batch(bench.client, 0, [b"x"] * 16, 1)).code == 0
        assert (await send_batch(bench.client, 0, [b"x"] * 16, 1)).fields["penstockRepeated"] == "true"
        assert len(await bodies(bench, 1)) == 16

    with_broker(tmp_path, test, idempotence_window=16)
