"""Plain sends without a closer look: whole runs of frames from one read, one write to the log, one answer.

The compiled `SendPath` recognises them, builds their records and their answers; here it is decided when it may,
and which topics and queues it knows. A queue becomes known when the ordinary path has stored into it, and every
change of any topic makes all of them unknown again. Whatever is not plain, and everything while the broker is
not simply accepting, goes the ordinary way (`processors/send.py`), with the same outcome: a test sends a
corpus both ways and compares bytes.

Owned by the event loop. Used only where the hot modules are compiled: as plain Python the ordinary path is faster.
"""

from __future__ import annotations

import struct

import msgspec

from penstock._hot.frames import TopicQueues
from penstock._hot.records import RecordBuilder
from penstock._hot.sends import SendPath
from penstock.broker.flow_control import FlowControl, refusal_fields
from penstock.broker.message_ids import OffsetIds
from penstock.broker.send_rules import SendRules
from penstock.broker.writing import MessageWriter, Parts, Written
from penstock.errors import PenstockError
from penstock.metadata.topic_table import TopicConfig
from penstock.protocol.command import FrameLimits, decode_frame, encode_frame
from penstock.protocol.headers import DURABILITY_FIELD
from penstock.remoting import Connection
from penstock.store import Durability

_BORN_HOST = "born_host"
_REMARK_MAX = 2048
_json = msgspec.json.encode


class SendFastPath:
    """A `FastPath` for the broker's server."""

    def __init__(
        self,
        rules: SendRules,
        writer: MessageWriter,
        flow: FlowControl,
        offset_ids: OffsetIds,
        limits: FrameLimits,
    ) -> None:
        self._rules = rules
        self._writer = writer
        self._flow = flow
        self._offset_ids = offset_ids
        self._limits = limits
        self._known: dict[str, TopicQueues] = {}
        self._born_host = b""
        # A chunk of which the store took nothing, and up to where: its frames are the ordinary path's.
        self._refused: bytes | None = None
        self._refused_to = 0
        self._renew()

    def _renew(self) -> None:
        """Begin with the broker's present settings and no topic known."""
        self._suffix = self._rules.suffix_bytes
        self._known.clear()
        self._durability = self._writer.default_durability
        reached = self._durability.name.lower()
        fields = {**self._rules.answer_fields, DURABILITY_FIELD: reached}.items()
        self._path = SendPath(
            self._suffix,
            b"".join(b'"%s":%s,' % (name.encode(), _json(value)) for name, value in fields),
            b"".join(_binary_field(name, value) for name, value in fields),
            self._limits.frame_bytes_max,
            self._limits.header_bytes_max,
            self._rules.options.batch_count_max,
        )

    # -- which queues ----------------------------------------------------------------------------------------

    def learn(self, topic: str, queue_id: int) -> None:
        """The ordinary path has stored a plain message there."""
        known = self._known.get(topic)
        if known is None:
            count = self._rules.plain_queues(topic)
            if not count:
                return
            known = self._known[topic] = TopicQueues(topic.encode(), [None] * count)
            self._path.put_topic(known)
        if queue_id < len(known.queues) and known.queues[queue_id] is None:
            known.queues[queue_id] = self._writer.queue(topic, queue_id)

    def forget(self, _: TopicConfig | None = None) -> None:
        """A topic was made, changed or deleted: what was learned may be wrong."""
        self._known.clear()
        self._path.clear_topics()

    # -- frames ----------------------------------------------------------------------------------------------

    def process(self, connection: Connection, data: bytes, start: int) -> int:
        durability = self._writer.default_durability
        if self._suffix is not self._rules.suffix_bytes or durability is not self._durability:
            self._renew()
        # Asked first: a chunk that is going to be refused frame by frame must not be scanned once for each.
        if self._refused is not None:
            if data is self._refused and start < self._refused_to:
                return start
            self._refused = None
        flow = self._flow
        if not self._rules.is_open or flow.waiting >= flow.options.sends_waiting_max:
            return start
        if flow.waiting_bytes > flow.options.sends_waiting_bytes_max:
            return start
        path = self._path
        stopped = path.scan(data, start)
        if not path.count:
            return start
        host: bytes | None = connection.attributes.get(_BORN_HOST)
        if host is None:
            host = connection.attributes[_BORN_HOST] = connection.peer.encode()
        self._born_host = host
        prefix = self._offset_ids.prefix(connection).encode()
        held = _Held(connection, path, prefix, self._rules, durability)
        try:
            self._writer.append_run(self._build, self._parts, held.written)
        except PenstockError:
            # Nothing was stored. The ordinary path meets the same trouble and tells each sender.
            self._refused, self._refused_to = data, stopped
            return start
        held.keep()
        return stopped if path.built == path.count else path.frame_at(path.built)

    def _build(self, builder: RecordBuilder) -> int:
        return self._path.build(builder, self._born_host)

    def _parts(self) -> Parts:
        return [(name.decode(), count, size) for name, count, size in self._path.take_counts()]


class _Held:
    """Answers to one run: written at once where memory is enough, else kept until disk and replicas have it.

    They say `durability`; where something else was reached they are made anew."""

    __slots__ = ("_answers", "_connection", "_durability", "_is_over", "_path", "_prefix", "_rules")

    def __init__(
        self,
        connection: Connection,
        path: SendPath,
        prefix: bytes,
        rules: SendRules,
        durability: Durability,
    ) -> None:
        self._connection = connection
        self._path = path
        self._prefix = prefix
        self._rules = rules
        self._durability = durability
        self._answers: bytearray | None = None
        self._is_over = False

    def keep(self) -> None:
        """The path will be used again: if the answers have to wait, make them now."""
        if not self._is_over and self._path.built:
            self._answers = self._path.answers(self._prefix)

    def written(self, outcome: Written) -> None:
        self._is_over = True
        answers = self._path.answers(self._prefix) if self._answers is None else self._answers
        if outcome.code or outcome.error is not None or outcome.durability is not self._durability:
            answers = self._changed(answers, outcome)
        if answers:
            self._connection.write(answers)

    def _changed(self, answers: bytearray, outcome: Written) -> bytearray:
        """The same answers with what became of the messages."""
        changed, at = bytearray(), 0
        while at < len(answers):
            end = at + 4 + int.from_bytes(answers[at : at + 4], "big")
            answer = decode_frame(answers, at, end)
            answer.code = outcome.code
            answer.remark = outcome.remark
            answer.fields[DURABILITY_FIELD] = outcome.durability.name.lower()
            if outcome.error is not None:
                answer.code, answer.remark = outcome.error.code, str(outcome.error)[:_REMARK_MAX]
                answer.fields = {**self._rules.answer_fields, **refusal_fields(outcome.error)}
            changed += encode_frame(answer)
            at = end
        return changed


def _binary_field(name: str, value: str) -> bytes:
    key, data = name.encode(), value.encode()
    return struct.pack(">h", len(key)) + key + struct.pack(">i", len(data)) + data
