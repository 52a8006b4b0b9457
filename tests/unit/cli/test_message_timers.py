"""`penstock message recall | waiting`, against a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock import Admin
from penstock.protocol.recall import RecallHandle
from penstock.testing import broker
from tests.support.cluster_commands import Commands
from tests.waiting import wait_until


@pytest.fixture
def run() -> Iterator[Commands]:
    with broker() as address:
        yield Commands(address)


def until_waiting(run: Commands, wanted: dict[str, int]) -> dict[str, object]:
    """The broker takes timers into its wheel a moment after they are stored."""
    wait_until(lambda: run.json("message", "waiting")["brokers"][0]["topics"] == wanted)
    found: dict[str, object] = run.json("message", "waiting")
    return found


def test_what_waits_is_counted_and_taken_back(run: Commands) -> None:
    assert "0 messages waiting" in run.ok("message", "waiting")
    told = run.json_lines("produce", "soon", "--delay", "40s", text="a\nb")
    run.ok("produce", "later", "--delay", "30m", text="c")
    run.ok("produce", "last", "--delay", "20h", text="d")
    found = until_waiting(run, {"last": 1, "later": 1, "soon": 2})
    assert found["waiting"] == 4
    assert found["brokers"][0]["within_seconds"] == {"60": 2, "3600": 3, "86400": 4}  # type: ignore[index]
    shown = run.ok("message", "waiting")
    for part in ("soon", "later", "4 messages waiting", "2 within a minute, 3 within a hour, 4 within a day"):
        assert part.replace("a hour", "an hour") in shown
    only = run.json("message", "waiting", "--topic", "soon")
    assert (only["waiting"], only["brokers"][0]["topics"]) == (2, {"soon": 2})
    handle = told[0]["recall_handle"]
    assert run.json("message", "recall", handle) == {"recalled": told[0]["message_id"]}
    until_waiting(run, {"last": 1, "later": 1, "soon": 1})
    assert f"message {told[1]['message_id']} is recalled" in run.ok(
        "message", "recall", told[1]["recall_handle"]
    )


def test_what_cannot_be_recalled_is_said(run: Commands) -> None:
    (told,) = run.json_lines("produce", "soon", "--delay", "10m", text="a")
    handle = RecallHandle.decode(told["recall_handle"])
    assert "too late" in run.refused("message", "recall", handle._replace(time_ms=1).encode())
    assert "no broker 'elsewhere'" in run.refused(
        "message", "recall", handle._replace(broker_name="elsewhere").encode()
    )
    assert "\x1b" not in run.refused("message", "recall", "\x1b[2J")


def test_the_same_from_python(run: Commands) -> None:
    (told,) = run.json_lines("produce", "python", "--delay", "50s", text="a")
    with Admin(run.nameserver) as admin:
        until_waiting(run, {**run.json("message", "waiting")["brokers"][0]["topics"], "python": 1})
        (found,) = admin.timers_waiting()
        assert (found.broker, found.topics["python"]) == ("test-broker", 1)
        assert admin.recall_message(told["recall_handle"]) == told["message_id"]
