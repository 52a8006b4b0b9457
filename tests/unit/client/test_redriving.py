"""Dead letters sent again, against a real broker: once each, whatever was interrupted, and told one by one."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.client import redriving
from penstock.client.admin import Admin, AsyncAdmin
from penstock.client.consumer import Consumer
from penstock.client.received import ReceivedMessage, Retry
from penstock.client.redrive_marks import MARKS_TOPIC, MarkLog
from penstock.client.redriving import Outcome, Redriving
from penstock.errors import CallTimeoutError, ClientError, OptionError
from penstock.testing import broker
from tests.support.consuming import QUICK
from tests.support.dead_letters import kill_all
from tests.waiting import until, wait_until


@pytest.fixture
def address() -> Iterator[str]:
    with broker(store=QUICK) as address:
        yield address


def stored(address: str, topic: str) -> list[ReceivedMessage]:
    with Admin(address) as admin:
        return [
            message
            for queue in admin.queues(topic)
            for message in admin.read_messages(queue, admin.min_offset(queue), limit=1_000)
        ]


def outcomes(results: Any) -> list[str]:
    return [str(result.outcome) for result in results]


def test_groups_are_counted_by_reason(address: str) -> None:
    kill_all(address, 9)
    kill_all(address, 2, group="h", topic="U")
    with Admin(address) as admin:
        told: list[int] = []
        first, second = admin.dead_letters.groups(progress=told.append)
        assert told == [9, 11]
        assert (first.group, first.count, second.group, second.count) == ("g", 9, "h", 2)
        assert [(kind.kind, kind.count) for kind in first.kinds] == [("bad luck #", 6), ("refused", 3)]
        assert first.kinds[0].topics == {"T": 6}
        assert admin.dead_letters.groups("nobody") == []
        assert {one.message.body for one in admin.dead_letters.read("g", reason="REFUSED")} == {
            b"order 0",
            b"order 3",
            b"order 6",
        }
        [one] = admin.dead_letters.read("g", key="k4")
        assert (one.reason, one.origin_topic, one.redriven) == ("bad luck 4", "T", None)
        assert one.first_failed_ms <= one.died_ms
        assert len(list(admin.dead_letters.read("g", sample=4))) == 4


def test_each_is_sent_once_however_often_it_is_asked_for(address: str) -> None:
    kill_all(address, 70)
    with Admin(address) as admin:
        [rehearsed] = admin.dead_letters.redrive("g", key="k5", dry_run=True)
        assert (rehearsed.outcome, rehearsed.topic) == (Outcome.WOULD_SEND, "T")
        assert len(stored(address, "T")) == 70
        [result] = admin.dead_letters.redrive("g", key="k5")
        assert (result.outcome, result.topic, result.copy_id) == (Outcome.SENT, "T", rehearsed.copy_id)
        again = list(admin.dead_letters.redrive("g"))
        assert len(again) == 70
        assert outcomes(again).count("sent") == 69
        [skipped] = [each for each in again if each.outcome is Outcome.SKIPPED]
        assert skipped.letter.message.keys == ["k5"]
        assert "before" in skipped.reason
        assert set(outcomes(admin.dead_letters.redrive("g"))) == {"skipped"}
        assert set(outcomes(admin.dead_letters.redrive("g", dry_run=True))) == {"skipped"}
        [summary] = admin.dead_letters.groups("g")
        assert (summary.count, summary.redriven) == (70, 70)
        assert MARKS_TOPIC not in admin.list_topics()
    messages = stored(address, "T")
    assert len(messages) == 140
    copies = [message for message in messages if "PENSTOCK_REDRIVEN_FROM" in message.properties]
    assert len({message.body for message in copies}) == 70
    copy = next(message for message in copies if message.keys == ["k5"])
    assert (copy.msg_id, copy.tag, copy.tries) == (result.copy_id, "t", 0)
    assert copy.properties["PENSTOCK_REDRIVEN_FROM"] == result.letter.letter_id
    assert copy.properties["mine"] == "x"
    for gone in ("RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "PENSTOCK_REASON", "PENSTOCK_ORIGIN", "DELAY"):
        assert gone not in copy.properties
    # To the queue it came from.
    first = next(message for message in messages if message.keys == ["k5"] and message is not copy)
    assert copy.queue == first.queue


def test_what_dies_again_is_another_dead_letter(address: str) -> None:
    kill_all(address, 1)
    with Admin(address) as admin:
        assert outcomes(admin.dead_letters.redrive("g")) == ["sent"]
        with Consumer(address, group="g", listener=lambda message: Retry(-1, "again")) as consumer:
            consumer.subscribe("T")
            wait_until(lambda: admin.dead_letters.groups("g")[0].count == 2)
        assert outcomes(admin.dead_letters.redrive("g")) == ["skipped", "sent"]


def test_a_sample_and_another_topic(address: str) -> None:
    kill_all(address, 10)
    with Admin(address) as admin:
        admin.create_topic("V")
        assert outcomes(admin.dead_letters.redrive("g", sample=3, to="V")) == ["sent"] * 3
        assert outcomes(admin.dead_letters.redrive("g", sample=3, to="V")) == ["skipped"] * 3
        assert len(stored(address, "V")) == 3
        assert len(list(admin.dead_letters.read("g", redriven=True))) == 3
        for bad in ({"to": "%RETRY%g"}, {"rate": -1.0}, {"rate": 0.01}, {"rate": 2e6}, {"sample": 10**6}):
            with pytest.raises(OptionError):
                list(admin.dead_letters.redrive("g", **bad))  # type: ignore[arg-type]


def test_what_cannot_be_sent_is_told_and_can_be_tried_again(address: str) -> None:
    kill_all(address, 3)
    with Admin(address) as admin:
        results = list(admin.dead_letters.redrive("g", to="nowhere"))
        assert outcomes(results) == ["failed"] * 3
        assert all("nowhere" in result.reason for result in results)
        admin.create_topic("shut", permission=4)
        assert outcomes(admin.dead_letters.redrive("g", to="shut")) == ["failed"] * 3
        assert [summary.redriven for summary in admin.dead_letters.groups("g")] == [0]
        assert outcomes(admin.dead_letters.redrive("g")) == ["sent"] * 3
        assert list(admin.dead_letters.redrive("nobody")) == []


def test_a_rate_is_kept(address: str) -> None:
    kill_all(address, 12)

    async def scenario() -> None:
        async with AsyncAdmin(address) as admin:
            loop = asyncio.get_running_loop()
            began = loop.time()
            results = [result async for result in admin.dead_letters.redrive("g", rate=20)]
            spent = loop.time() - began
            assert outcomes(results) == ["sent"] * 12
            assert 11 / 20 <= spent < 30

    asyncio.run(scenario())


def test_only_one_at_a_time(address: str) -> None:
    kill_all(address, 3)
    with Admin(address, instance_name="one") as one, Admin(address, instance_name="other") as other:
        first = one.dead_letters.redrive("g", rate=1)
        assert next(first).outcome is Outcome.SENT
        with pytest.raises(ClientError, match="somebody else"):
            next(iter(other.dead_letters.redrive("g")))
        first.close()  # type: ignore[attr-defined]
        assert sorted(outcomes(other.dead_letters.redrive("g"))) == ["sent", "sent", "skipped"]
    assert len(stored(address, "T")) == 6


# -- interrupted ---------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Ends a redrive where a kill would."""


@pytest.mark.parametrize("stage", ["before the notes", "noted", "half sent", "sent", "ended"])
@pytest.mark.invariant("I1")
def test_interrupted_anywhere_and_given_again_each_is_sent_once(
    address: str, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_all(address, 8)
    monkeypatch.setattr(redriving, "LOOK_AGAIN_MS", 100)
    begun, ended, send = MarkLog.begun, MarkLog.ended, Redriving._send
    sends = answered = 0

    async def killed_begun(self: MarkLog, *parts: Any) -> None:
        if stage == "before the notes":
            raise Killed
        await begun(self, *parts)
        if stage == "noted":
            raise Killed

    async def killed_send(self: Redriving, *parts: Any) -> Any:
        nonlocal sends, answered
        sends += 1
        if stage == "half sent" and sends > 4:
            await until(lambda: answered == 4)
            raise Killed
        found = await send(self, *parts)
        answered += 1
        return found

    async def killed_ended(self: MarkLog, *parts: Any) -> None:
        if stage == "sent":
            raise Killed
        await ended(self, *parts)
        if stage == "ended":
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(MarkLog, "begun", killed_begun)
        patch.setattr(MarkLog, "ended", killed_ended)
        patch.setattr(Redriving, "_send", killed_send)

        async def killed() -> None:
            async with AsyncAdmin(address, instance_name="killed") as admin:
                with pytest.raises(Killed):
                    [result async for result in admin.dead_letters.redrive("g")]

        asyncio.run(killed())
    already = {"half sent": 4, "sent": 8, "ended": 8}.get(stage, 0)
    with Admin(address, instance_name="next") as admin:
        results = list(admin.dead_letters.redrive("g"))
    assert sorted(outcomes(results)) == ["sent"] * (8 - already) + ["skipped"] * already
    copies = [m.body for m in stored(address, "T") if "PENSTOCK_REDRIVEN_FROM" in m.properties]
    assert sorted(copies) == sorted({b"order %d" % number for number in range(8)})


@pytest.mark.parametrize("is_stored", [True, False])
def test_an_answer_that_never_came_is_looked_up(
    address: str, is_stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_all(address, 2)
    monkeypatch.setattr(redriving, "LOOK_AGAIN_MS", 100)
    send = Redriving._send

    async def unheard(self: Redriving, *parts: Any) -> Any:
        if is_stored:
            await send(self, *parts)
        return CallTimeoutError("no answer within 3 s")

    with Admin(address) as admin:
        with monkeypatch.context() as patch:
            patch.setattr(Redriving, "_send", unheard)
            results = list(admin.dead_letters.redrive("g"))
        assert outcomes(results) == (["sent"] * 2 if is_stored else ["failed"] * 2)
        if not is_stored:
            assert all("not known" in result.reason for result in results)
        expected = ["skipped"] * 2 if is_stored else ["sent"] * 2
        assert outcomes(admin.dead_letters.redrive("g")) == expected
    assert len(stored(address, "T")) == 4
