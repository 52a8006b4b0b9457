"""Pops in order, asked for as RocketMQ's proxy does, at RocketMQ 5.3.3 and at Penstock: the same answers."""

from __future__ import annotations

import time
from typing import Any

from tests.interop.wire.conftest import Drivers
from tests.interop.wire.frames import Frame, Wire
from tests.interop.wire.peer import Peer, Server

INVISIBLE_MS = 6_000


class Popper:
    """One group that pops queue 0 of a topic in order."""

    def __init__(self, wire: Wire, topic: str, group: str) -> None:
        self._wire = wire
        self._common = {"consumerGroup": group, "topic": topic, "queueId": "0"}

    def pop(self, most: int, attempt: str) -> Frame:
        fields = {
            **self._common,
            "maxMsgNums": str(most),
            "invisibleTime": str(INVISIBLE_MS),
            "pollTime": "0",
            "bornTime": "0",
            "initMode": "0",
            "expType": "TAG",
            "exp": "*",
            "order": "true",
            "attemptId": attempt,
        }
        return self._wire.call(200050, fields)

    def handle(self, popped: Frame, offset: int, broker: str = "broker-a") -> str:
        fields: dict[str, Any] = popped.fields
        start = fields["startOffsetInfo"].split(" ")[2]
        return f"{start} {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} 0 {broker} 0 {offset}"

    def ack(self, popped: Frame, offset: int) -> int:
        extra = {"extraInfo": self.handle(popped, offset), "offset": str(offset)}
        return self._wire.call(200051, {**self._common, **extra}).code

    def change(self, popped: Frame, offset: int, invisible_ms: int) -> Frame:
        extra = {"extraInfo": self.handle(popped, offset), "offset": str(offset)}
        return self._wire.call(200053, {**self._common, **extra, "invisibleTime": str(invisible_ms)})


def told(popped: Frame) -> tuple[object, ...]:
    """What an answer says of its messages."""
    names = ("reviveQid", "startOffsetInfo", "msgOffsetInfo", "orderCountInfo")
    return popped.code, *(popped.fields.get(name) for name in names)


def test_ordered_pops_answer_alike(server: Server, drivers: Drivers) -> None:
    peer = Peer(drivers.get("java-5.3.3"), server)
    try:
        topic = peer.create_topic(queues=1)
        peer.send(topic, [f"m{number}" for number in range(6)], queue=0)
    finally:
        peer.end()
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
