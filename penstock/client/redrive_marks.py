"""Which dead letters were sent again: notes in the topic PENSTOCK_REDRIVEN, in the log that has the dead letter.

    begun   {"group": g, "topic": T, "begun": {name: id, ...}}      before the copies are sent
    ended   {"group": g, "topic": T, "sent": {name: id, ...}, "unsent": [name, ...]}      after their answers

`name` is the dead letter's (`DeadLetter.name`), `id` the unique id of the copy, which follows from the name. A
dead letter that was begun and not ended is in doubt: whoever comes next looks the id up in the topic, where it is
indexed. Notes lie on the broker of the dead letter and behind it, so that retention takes the dead letter first,
and they are as safe as any message of that broker.

Rules: notes are read as a stranger's: what is no note is skipped. One writer at a time, by the lock on the dead
letters' queue (`redriving`). Encoding and reading are pure; `MarkLog` does the calls.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.client.cluster_calls import ClusterCalls
from penstock.client.dead_letters import RedriveMark
from penstock.client.identity import month_start_ms
from penstock.client.queue_reading import read_queue
from penstock.client.results import is_stored
from penstock.errors import PenstockError, ResponseError, RouteNotFoundError
from penstock.message import PropertyName, encode_properties
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.headers import SendMessageRequestHeader

MARKS_TOPIC = "PENSTOCK_REDRIVEN"
MARKS_PRODUCER = "PENSTOCK_REDRIVE"
_ID_MAX = 64


def copy_id(name: str, topic: str, died_ms: int) -> str:
    """The unique id of the copy of a dead letter in a topic: always the same, and of the form that clients give.

    The time in it is the dead letter's, so that searches that begin at an id's time find the copy.
    """
    digest = hashlib.sha256(f"{name}\n{topic}".encode()).digest()
    moment = (died_ms - month_start_ms(died_ms)) & 0xFFFFFFFF
    return (digest[:10] + moment.to_bytes(4, "big") + digest[10:12]).hex().upper()


@dataclass(slots=True)
class Marks:
    """What is noted about the dead letters of one group."""

    group: str
    sent: dict[str, RedriveMark] = field(default_factory=dict)
    # Begun and not ended: name of the dead letter, then topic and id of the copy.
    in_doubt: dict[str, tuple[str, str]] = field(default_factory=dict)

    def take(self, body: bytes, time_ms: int) -> None:
        """One note; anything else is skipped."""
        try:
            note = json.loads(body)
        except ValueError:
            return
        if not isinstance(note, dict) or note.get("group") != self.group:
            return
        topic = note.get("topic")
        if not isinstance(topic, str):
            return
        for name, msg_id in _pairs(note.get("begun")):
            self.in_doubt[name] = (topic, msg_id)
        unsent = note.get("unsent")
        names = [name for name in unsent if isinstance(name, str)] if isinstance(unsent, list) else []
        self.end(topic, dict(_pairs(note.get("sent"))), names, time_ms)

    def end(self, topic: str, sent: Mapping[str, str], unsent: Iterable[str], time_ms: int) -> None:
        """These were sent under these ids, and these were surely not."""
        for name, msg_id in sent.items():
            self.in_doubt.pop(name, None)
            self.sent.setdefault(name, RedriveMark(topic, msg_id, time_ms))
        for name in unsent:
            self.in_doubt.pop(name, None)


def _pairs(value: object) -> Iterable[tuple[str, str]]:
    if not isinstance(value, dict):
        return
    for name, msg_id in value.items():
        if isinstance(msg_id, str) and len(msg_id) <= _ID_MAX:
            yield name, msg_id


def group_tag(group: str) -> str:
    """The tag of a group's notes; names of groups may hold what tags may not."""
    return f"{zlib.crc32(group.encode()):08x}"


class MarkLog:
    """The notes of one cluster."""

    def __init__(self, calls: ClusterCalls) -> None:
        self._calls = calls

    async def read(self, group: str) -> Marks:
        """All notes about the dead letters of a group, at every broker."""
        marks = Marks(group)
        try:
            route = await self._calls.instance.routes.refresh(MARKS_TOPIC)
        except RouteNotFoundError:
            return marks
        for queue in route.subscribe_queues:
            address = route.address(queue.broker_name)
            if address is None:
                raise RouteNotFoundError(
                    f"broker {queue.broker_name!r} is not there now",
                    "without it nobody knows which dead letters were sent again",
                )
            async for page in read_queue(self._calls, address, queue, tags=group_tag(group)):
                for message in page:
                    marks.take(message.body, message.store_timestamp)
        return marks

    async def begun(self, broker: str, group: str, topic: str, ids: Mapping[str, str]) -> None:
        """These are about to be sent."""
        await self._write(broker, {"group": group, "topic": topic, "begun": dict(ids)})

    async def ended(
        self, broker: str, group: str, topic: str, sent: Mapping[str, str], unsent: Iterable[str]
    ) -> None:
        """These were sent, and these were surely not."""
        note: dict[str, object] = {
            "group": group,
            "topic": topic,
            "sent": dict(sent),
            "unsent": sorted(unsent),
        }
        await self._write(broker, note)

    async def _write(self, broker: str, note: dict[str, object]) -> None:
        instance = self._calls.instance
        properties = {
            PropertyName.TAGS: group_tag(str(note["group"])),
            PropertyName.UNIQ_KEY: instance.unique_ids.next(),
        }
        header = SendMessageRequestHeader(
            producer_group=MARKS_PRODUCER,
            topic=MARKS_TOPIC,
            queue_id=0,
            sys_flag=0,
            born_timestamp=instance.runtime.clock.now_ms(),
            flag=0,
            properties=encode_properties(properties).decode(),
            reconsume_times=0,
            broker_name=broker,
        )
        body = json.dumps(note).encode()
        answer = await instance.call_broker(
            broker, Command(RequestCode.SEND_MESSAGE_V2, header.encode(), body)
        )
        if not is_stored(answer.code):
            raise ResponseError(answer.code, answer.remark or "a note of a redrive was not stored")

    async def missing_at(self, brokers: Iterable[str]) -> list[str]:
        """Brokers at which the topic of the notes is not there yet."""
        try:
            route = await self._calls.instance.routes.refresh(MARKS_TOPIC)
        except PenstockError:
            return list(brokers)
        there = {queue.broker_name for queue in route.publish_queues}
        return [broker for broker in brokers if broker not in there]
