"""Pops in order, asked for as RocketMQ's proxy does, at RocketMQ 5.3.3 and at Penstock: the same answers."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest

from tests.interop.wire.conftest import Drivers
from tests.interop.wire.frames import Frame, Wire
from tests.interop.wire.peer import Peer, Server

INVISIBLE_MS = 6_000


class Popper:
    """One group that pops queue 0 of a topic in order."""

    def __init__(self, wire: Wire, topic: str, group: str) -> None:
        self._wire = wire
        self._common = {"consumerGroup": group, "topic": topic, "queueId": "0"}

    def pop(self, most: int, attempt: str = "", *, in_order: bool = True) -> Frame:
        fields = {
            **self._common,
            "maxMsgNums": str(most),
            "invisibleTime": str(INVISIBLE_MS),
            "pollTime": "0",
            "bornTime": "0",
            "initMode": "0",
            "expType": "TAG",
            "exp": "*",
            "order": str(in_order).lower(),
            **({"attemptId": attempt} if attempt else {}),
        }
        return self._wire.call(200050, fields)

    def handle(self, popped: Frame, offset: int, broker: str = "broker-a") -> str:
        fields: dict[str, Any] = popped.fields
        start = fields["startOffsetInfo"].split(" ")[2]
        return f"{start} {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} 0 {broker} 0 {offset}"

    def ack(self, popped: Frame, offset: int, appended: str = "") -> int:
        extra = {"extraInfo": self.handle(popped, offset) + appended, "offset": str(offset)}
        return self._wire.call(200051, {**self._common, **extra}).code

    def ack_many(self, popped: Frame, *places: int) -> int:
        """By their places behind the start of the pop."""
        fields, bits = popped.fields, sum(1 << place for place in places)
        ack = {
            "c": self._common["consumerGroup"],
            "t": self._common["topic"],
            "r": "0",
            "so": int(fields["startOffsetInfo"].split(" ")[2]),
            "q": 0,
            "rq": int(fields["reviveQid"]),
            "pt": int(fields["popTime"]),
            "it": int(fields["invisibleTime"]),
            "b": base64.b64encode(bits.to_bytes(bits.bit_length() // 8 + 1, "little")).decode(),
        }
        body = json.dumps({"brokerName": "broker-a", "acks": [ack]}).encode()
        return self._wire.call(200151, body=body).code

    def change(self, popped: Frame, offset: int, invisible_ms: int, appended: str = "") -> Frame:
        extra = {"extraInfo": self.handle(popped, offset) + appended, "offset": str(offset)}
        return self._wire.call(200053, {**self._common, **extra, "invisibleTime": str(invisible_ms)})


def told(popped: Frame) -> tuple[object, ...]:
    """What an answer says of its messages."""
    names = ("reviveQid", "startOffsetInfo", "msgOffsetInfo", "orderCountInfo")
    return popped.code, *(popped.fields.get(name) for name in names)


def filled(server: Server, drivers: Drivers, count: int) -> str:
    """A topic with so many messages in queue 0."""
    peer = Peer(drivers.get("java-5.3.3"), server)
    try:
        topic = peer.create_topic(queues=1)
        peer.send(topic, [f"m{number}" for number in range(count)], queue=0)
    finally:
        peer.end()
    return topic


def test_ordered_pops_answer_alike(server: Server, drivers: Drivers) -> None:
    topic = filled(server, drivers, 6)
    with Wire(server.broker) as wire:
        popper = Popper(wire, topic, Peer.fresh("group"))
        first = popper.pop(3, "one")
        assert told(first) == (0, "999", "0 0 0", "0 0 0,1,2", "0 0 0")
        # Somebody else's until it is done; the same attempt gets it once more.
        assert popper.pop(3, "two").code == 210
        again = popper.pop(3, "one")
        assert told(again) == told(first)
        # In order, from the first on; with the last one the queue is free.
        for offset in (0, 1, 2):
            assert popper.ack(again, offset) == 0
        second = popper.pop(2, "three")
        assert told(second) == (0, "999", "0 0 3", "0 0 3,4", "0 0 0")
        assert popper.ack(second, 3) == 0
        # What is left comes again when its time is over, counted; a change makes that longer or shorter.
        changed = popper.change(second, 4, 12_000)
        assert (changed.code, changed.fields["reviveQid"]) == (0, "999")
        assert changed.fields["popTime"] == second.fields["popTime"]
        assert 12_000 <= int(changed.fields["invisibleTime"]) < 12_000 + INVISIBLE_MS
        time.sleep(INVISIBLE_MS / 1000 + 1)
        assert popper.pop(3, "four").code == 210
        assert popper.change(second, 4, 1_000).code == 0
        time.sleep(2)
        third = popper.pop(3, "four")
        assert told(third) == (0, "999", "0 0 4", "0 0 4,5", "0 qo0%4 1;0 0 0")
        for offset in (4, 5):
            assert popper.ack(third, offset) == 0
        assert popper.pop(3, "five").code == 210


def test_a_lot_comes_again_with_what_was_acknowledged_behind_the_first(
    server: Server, drivers: Drivers
) -> None:
    topic = filled(server, drivers, 4)
    with Wire(server.broker) as wire:
        popper = Popper(wire, topic, Peer.fresh("group"))
        first = popper.pop(3, "one")
        assert popper.ack(first, 1) == 0
        # The attempt that is made again gets all of it, too, and what was acknowledged counts no more.
        again = popper.pop(3, "one")
        assert told(again) == (0, "999", "0 0 0", "0 0 0,1,2", "0 0 0")
        assert popper.ack(again, 1) == 0
        time.sleep(INVISIBLE_MS / 1000 + 1)
        second = popper.pop(4, "two")
        assert told(second) == (0, "999", "0 0 0", "0 0 0,1,2,3", "0 qo0%0 1;0 qo0%1 1;0 qo0%2 1;0 0 0")
        # The handles of the first pop have no effect.
        assert popper.ack(again, 0) == 0
        assert popper.pop(4, "three").code == 210
        # In a batch, with what is not of the lot.
        assert popper.ack_many(second, 0, 1, 3) == 0
        third = popper.change(second, 2, 1_000)
        assert third.code == 0
        time.sleep(2)
        last = popper.pop(4, "four")
        assert told(last) == (0, "999", "0 0 2", "0 0 2,3", "0 qo0%2 2;0 qo0%3 1;0 0 1")
        assert popper.ack_many(last, 0, 1) == 0
        assert popper.pop(4, "five").code == 210


@pytest.mark.parametrize("in_order", [True, False])
def test_handles_that_a_proxy_has_added_to_are_accepted(
    server: Server, drivers: Drivers, in_order: bool
) -> None:
    topic = filled(server, drivers, 4)
    with Wire(server.broker) as wire:
        popper = Popper(wire, topic, Peer.fresh("group"))
        popped = popper.pop(4, in_order=in_order)
        assert told(popped)[2:4] == ("0 0 0", "0 0 0,1,2,3")
        # What the lot does not have, and what the queue does not have.
        assert popper.ack(popped, 4) == (13 if in_order else 0)
        assert popper.ack(popped, 5) == 208
        assert popper.change(popped, 4, 30_000).code == 208
        assert popper.ack(popped, 0, " -1") == 0
        assert popper.ack(popped, 1, " 123456") == 0
        changed = popper.change(popped, 2, 30_000, " 123456")
        assert (changed.code, changed.fields["reviveQid"]) == (0, popped.fields["reviveQid"])
        # Twice, late, or with the handle from before the change: as if it counted.
        assert popper.ack(popped, 0) == 0
        assert popper.ack(popped, 2) == 0
        assert popper.change(popped, 0, 30_000).code == 0
        assert popper.ack_many(popped, 0, 3) == 0
