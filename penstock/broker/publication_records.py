"""The records of PENSTOCK_PUBLISHED: two for each publication, which tell the next start what was decided, and one
for each query that publishes at another broker.

    begun     the decision: which staged messages of which query and batch become messages of their topics
    done      all of them are
    home      a query publishes at another broker

Bodies are JSON, so that whoever reads the topic (it can be read) can read them; KEYS is the query, TAGS the kind. The
log position of `begun` is the prepared offset of every message that it published. `owner` is the user who publishes,
and is left out where access control is off. Plain values, no I/O.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from penstock.broker.record_gate import is_from_client
from penstock.broker.staging import Handle
from penstock.errors import CodecError
from penstock.message import Message, StoredMessage
from penstock.protocol.topic_names import PUBLISHED_TOPIC

BEGUN, DONE, HOME = "begun", "done", "home"


@dataclass(frozen=True, slots=True)
class Begun:
    """What is published."""

    query: str
    batch: int
    messages: int
    handles: tuple[Handle, ...]
    owner: str = ""

    def message(self) -> Message:
        body = {
            "kind": BEGUN,
            "query": self.query,
            "batch": self.batch,
            "messages": self.messages,
            "staged": [str(handle) for handle in self.handles],
        }
        return _message(self.query, BEGUN, body, self.owner)


@dataclass(frozen=True, slots=True)
class Done:
    """What was published; `begun` is the log position of the decision, `missing` what could not be."""

    query: str
    batch: int
    messages: int
    begun: int
    missing: int = 0
    owner: str = ""

    def message(self) -> Message:
        body = {
            "kind": DONE,
            "query": self.query,
            "batch": self.batch,
            "messages": self.messages,
            "begun": self.begun,
            "missing": self.missing,
        }
        return _message(self.query, DONE, body, self.owner)


@dataclass(frozen=True, slots=True)
class HomeTold:
    """Which other broker publishes for a query."""

    query: str
    broker: str
    owner: str = ""

    def message(self) -> Message:
        body: dict[str, object] = {"kind": HOME, "query": self.query, "broker": self.broker}
        return _message(self.query, HOME, body, self.owner)


def _message(query: str, kind: str, body: dict[str, object], owner: str) -> Message:
    if owner:
        body["owner"] = owner
    return Message.of(PUBLISHED_TOPIC, json.dumps(body).encode(), tag=kind, keys=query)


def read(record: StoredMessage) -> Begun | Done | HomeTold:
    """The record that a message of the topic is; CodecError for any other."""
    if is_from_client(record):
        raise CodecError(f"{record.message_id} is no record of a publication: a client sent it")
    try:
        body = json.loads(record.body)
        query, owner = str(body["query"]), str(body.get("owner", ""))
        if body["kind"] == HOME:
            return HomeTold(query, str(body["broker"]), owner)
        batch, messages = int(body["batch"]), int(body["messages"])
        if body["kind"] == BEGUN:
            handles = tuple(Handle.parse(text) for text in body["staged"])
            return Begun(query, batch, messages, handles, owner)
        if body["kind"] == DONE:
            return Done(query, batch, messages, int(body["begun"]), int(body["missing"]), owner)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CodecError(f"{record.message_id} is no record of a publication: {error!r}") from error
    raise CodecError(f"{record.message_id} is a record of a publication of no known kind")
