"""Sends that name their time, and taking them back."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import penstock
from penstock.errors import CodecError, MessageError, ResponseError
from penstock.protocol.recall import RecallHandle
from penstock.testing import broker
from tests.support.cluster_commands import Commands, lines
from tests.waiting import DEADLINE_S, PATIENT_SENDS

TOPIC = "reminders"


def received(address: str, count: int) -> list[tuple[bytes, float]]:
    """Bodies and when they were delivered."""
    found: list[tuple[bytes, float]] = []
    deadline = time.monotonic() + DEADLINE_S
    with penstock.Consumer(address, "readers", start_from="first") as consumer:
        consumer.subscribe(TOPIC)
        while len(found) < count and time.monotonic() < deadline:
            messages = consumer.poll(32, timeout_s=0.2)
            found += [(message.body, message.store_timestamp / 1000) for message in messages]
    return sorted(found, key=lambda item: item[1])


@pytest.mark.seed("S2-36")
@pytest.mark.invariant("I8")
def test_delay_deliver_at_and_recall() -> None:
    with broker() as address, penstock.Producer(address, **PATIENT_SENDS) as producer:
        # In one queue, and each due after the one before it, however long the sends take.
        producer.send(TOPIC, b"past", deliver_at=time.time() - 60, queue_key="k")
        back = producer.send(TOPIC, b"never", delay=2.0, queue_key="k")
        handle = RecallHandle.decode(back.recall_handle)
        assert (handle.topic, handle.unique) == (TOPIC, back.msg_id)
        assert producer.recall(back.recall_handle) == back.msg_id
        started = time.time()
        soon = producer.send(TOPIC, b"delay", delay=1.2, queue_key="k")
        producer.send(TOPIC, b"timedelta", delay=timedelta(seconds=1.5), queue_key="k")
        at = datetime.now(UTC) + timedelta(seconds=1.8)
        producer.send(TOPIC, b"datetime", deliver_at=at, queue_key="k")
        producer.send(TOPIC, b"epoch", deliver_at=time.time() + 2.1, queue_key="k")
        found = dict(received(address, 5))
        assert list(found) == [b"past", b"delay", b"timedelta", b"datetime", b"epoch"]
        for body, ahead in ((b"delay", 1.2), (b"timedelta", 1.5), (b"datetime", 1.8), (b"epoch", 2.1)):
            assert found[body] - started >= ahead - 0.005  # the store's clock is read once per group
        with pytest.raises(ResponseError) as refused:
            producer.recall(soon.recall_handle)
        assert refused.value.code == 604
        with pytest.raises(CodecError):
            producer.recall("nonsense")
        assert producer.send(TOPIC, b"now").recall_handle == ""


HOSTILE: list[dict[str, Any]] = [
    {"delay": -1},
    {"delay": float("nan")},
    {"delay": float("inf")},
    {"delay": "1"},
    {"delay": True},
    {"deliver_at": datetime(2030, 1, 1)},  # noqa: DTZ001
    {"deliver_at": -5.0},
    {"delay": 1, "deliver_at": 5.0},
    {"delay": 1, "delay_level": 3},
]


@pytest.mark.abuse("A18")
def test_what_is_no_time_is_refused_before_it_is_sent_and_what_is_too_far_by_the_broker() -> None:
    with broker() as address, penstock.Producer(address) as producer:
        for parts in HOSTILE:
            with pytest.raises(MessageError):
                producer.send(TOPIC, b"x", **parts)
        with pytest.raises(penstock.PenstockError) as refused:
            producer.send(TOPIC, b"x", delay=timedelta(days=4))
        assert "timerMaxDelaySec" in str(refused.value)


def test_on_the_command_line() -> None:
    with broker() as address:
        run = Commands(address)
        told = run.json_lines("produce", TOPIC, "--delay", "1s", text=lines(range(3)))
        assert all(RecallHandle.decode(line["recall_handle"]).topic == TOPIC for line in told)
        moment = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
        assert "3 sent" in run.ok("produce", TOPIC, "--deliver-at", moment, text=lines(range(3)))
        assert len(received(address, 6)) == 6
        for arguments in (
            ("--delay", "soon"),
            ("--delay", "5m ago"),
            ("--deliver-at", "10m"),
            ("--delay", "1s", "--deliver-at", moment),
            ("--delay", "1s", "--batch", 5),
        ):
            assert run("produce", TOPIC, *arguments, text="x\n").exit_code == 2
