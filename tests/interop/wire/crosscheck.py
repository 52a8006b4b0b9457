"""What a server answered in a scripted session, in a form in which two servers can be compared.

A `Transcript` maps the name of each step to its answer, flattened: `extFields.offset`, `body.offsetTable.…`. What can only
differ (addresses, times, the process that asked) is replaced by a word in angle brackets; everything else is compared
to the letter, and each difference must be a row of the table in docs/compatibility.md.

Rule: a value is replaced only if it has the form of what it is replaced by: a time that is no time stays and is seen.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from typing import Any

from penstock.metadata import fastjson
from tests.interop.wire.frames import Frame, Wire
from tests.interop.wire.peer import Server
from tests.interop.wire.records import properties_of, take_apart

Flat = dict[str, str]
Transcript = dict[str, Flat]
ABSENT = "(absent)"

_MINUTES_30 = 30 * 60 * 1000
# What a client or a broker makes when a message has none: 16 bytes, or 28 where the machine has an IPv6 address.
_UNIQUE_ID = re.compile(r"\b(?:[0-9A-F]{56}|[0-9A-F]{32})\b")
_NUMBER = re.compile(r"-?\d+")
# Figures that depend on when the question came, not on what was done before.
_FIGURES = re.compile(
    r"body\.(.*\.)?(consumeTps|topicPutTps|tps|avgpt|delayTime|delay|counter|lastUpdateTimestamp)"
    r"|body\.stats(Minute|Hour|Day)\.sum|body\.table\..*|body\.offsetTable\.\d+|body\.masterCommitLogMaxOffset"
)
_PLACES = re.compile(r"body.*\.(position|physicOffset)|ext\.indexLastUpdatePhyoffset")
# Settings that the fixtures choose, and those that only Penstock has.
_OWN_SETTINGS = re.compile(
    r"penstock\..*|brokerIP1|deleteWhen|disk.*Ratio|mappedFileSize.*|maxHashSlotNum|maxIndexNum|flushConsumerOffset.*"
)
_DISK_OF = "commitLogDiskRatio_"
_CLOCK_TEXT = re.compile(r"\d{4}-\d\d-\d\d#\d\d:\d\d:\d\d:\d{3}")
_TIME_INSIDE = re.compile(r"\b1[789]\d{11}\b")
# Codes whose remark is a word that programs may look at. Other remarks are for people.
_WORDED = (0, 3, 19, 20, 21)


class Recorder:
    """Runs steps against one server and notes the answers."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.transcript: Transcript = {}
        self._words: dict[str, str] = {server.broker: "<broker>", server.nameserver: "<nameserver>"}
        self._words[server.broker.rpartition(":")[2]] = "<port>"
        self._words[server.nameserver.rpartition(":")[2]] = "<port>"
        self._places: dict[int, str] = {}

    def know(self, value: str, word: str) -> None:
        """From now on this text is a word: an address or an id that the session made up or was given."""
        self._words[value] = word

    def call(
        self,
        step: str,
        wire: Wire,
        code: int,
        fields: Mapping[str, Any] | None = None,
        body: bytes = b"",
        *,
        shows: str = "json",
        **more: Any,
    ) -> Frame:
        """One request whose answer is noted."""
        frame = wire.call(code, fields, body, **more)
        self.note(step, frame, shows=shows)
        return frame

    def note(self, step: str, frame: Frame, *, shows: str = "json") -> None:
        """Notes an answer, or a request of the server. `shows` says what the body is: json, records, settings or
        nothing (only whether there is one)."""
        assert step not in self.transcript, f"two steps are called {step}"
        flat: Flat = {
            "code": str(frame.code),
            "flag": str(frame.flag),
            "language": frame.language,
            "version": str(frame.version),
            "form": "binary" if frame.is_binary else "json",
            "remark": self._remark(frame),
        }
        if frame.header:
            flat["header"] = " ".join(sorted(frame.header.keys() - {"extFields", "remark"}))
        for name, value in frame.fields.items():
            kind = "" if isinstance(value, str) else f" as {type(value).__name__}"
            is_place = _PLACES.fullmatch(f"ext.{name}")
            flat[f"ext.{name}"] = (self.place(int(value)) if is_place else self.word(str(value))) + kind
        self._flatten_body(flat, frame.body, shows)
        self.transcript[step] = flat

    def note_value(self, step: str, value: Any) -> None:
        """Something that the session saw besides answers."""
        self.transcript[step] = {"value": self.word(str(value))}

    def _remark(self, frame: Frame) -> str:
        if not frame.remark:
            return ABSENT
        return frame.remark if frame.code in _WORDED else "(text)"

    def _flatten_body(self, flat: Flat, body: bytes, shows: str) -> None:
        if not body:
            flat["body"] = ABSENT
        elif shows == "nothing":
            flat["body"] = "(there)"
        elif shows == "records":
            self._flatten(flat, "body", take_apart(body))
        elif shows == "settings":
            lines = (line.partition("=") for line in body.decode().splitlines() if "=" in line)
            settings = {key.strip(): value.strip() for key, _, value in lines}
            compared = {key: settings[key] for key in settings if not _OWN_SETTINGS.fullmatch(key)}
            self._flatten(flat, "body", compared)
        else:
            flat["body.dialect"] = _dialect(body)
            self._flatten(flat, "body", fastjson.loads(body))

    def _flatten(self, flat: Flat, path: str, value: Any) -> None:
        if _FIGURES.fullmatch(path) and not isinstance(value, dict | list):
            flat[path] = "<figure>"
        elif isinstance(value, dict) and value:
            for key, inner in value.items():
                self._flatten(flat, f"{path}.{self._key(key)}", inner)
        elif isinstance(value, list) and value:
            # Sets are written as lists in no order of their own; records keep theirs.
            ordered = (
                value if isinstance(value[0], dict) and "queueOffset" in value[0] else sorted(value, key=repr)
            )
            for index, inner in enumerate(ordered):
                at = self._list_key(inner, index)
                self._flatten(flat, f"{path}[{at}]", inner)
        else:
            is_place = _PLACES.fullmatch(path) and isinstance(value, int)
            text = value if isinstance(value, str) else json.dumps(value)
            flat[path] = self.place(value) if is_place else self.word(text)

    def _key(self, key: str) -> str:
        if key.startswith("{"):
            queue = fastjson.loads(key)
            assert isinstance(queue, dict)
            return f"<{queue['topic']}/{queue['brokerName']}/{queue['queueId']}>"
        return self.word(key)

    def _list_key(self, value: Any, index: int) -> str:
        """What an element is about: a missing one then is one difference and not one per element after it."""
        if isinstance(value, str):
            return self.word(value)
        if isinstance(value, dict):
            queue = value.get("messageQueue", value)
            if "brokerName" in queue and "queueId" in queue:
                return f"<{queue['topic']}/{queue['brokerName']}/{queue['queueId']}>"
            for name in ("brokerName", "clientId"):
                if name in value:
                    return str(value[name])
            if len(value) == 1:
                return "*"
        return str(index)

    def word(self, text: str) -> str:
        """The text with what can only differ replaced."""
        if text in self._words:
            return self._words[text]
        if text.startswith(_DISK_OF):
            return f"{_DISK_OF}<path>"
        if _NUMBER.fullmatch(text):
            return "<time>" if abs(int(text) - time.time() * 1000) < _MINUTES_30 else text
        if "\x02" in text:
            # Properties are a map: their order means nothing.
            text = " ".join(sorted(f"{name}={value}" for name, value in properties_of(text).items()))
        for known, word in self._words.items():
            if not known.isdigit():
                text = text.replace(known, word)
        text = _UNIQUE_ID.sub("<unique id>", self._offset_ids(text))
        text = _TIME_INSIDE.sub("<time>", _CLOCK_TEXT.sub("<time>", text))
        return re.sub(r'"counter":\d+', '"counter":<figure>', text)

    def place(self, position: int) -> str:
        """A position in the log, named by when it was first met: sizes of records need not be the same."""
        return self._places.setdefault(position, f"<place {len(self._places)}>")

    def _offset_ids(self, text: str) -> str:
        host, _, port = self.server.broker.rpartition(":")
        prefix = bytes(map(int, host.split("."))).hex().upper() + f"{int(port):08X}"
        return re.sub(
            f"{prefix}([0-9A-F]{{16}})", lambda found: f"<id of {self.place(int(found[1], 16))}>", text
        )


def _dialect(body: bytes) -> str:
    """Whether any JSON reader can read it, or only one that knows fastjson's bare keys."""
    try:
        json.loads(body)
    except ValueError:
        return "bare keys"
    return "strict"


def differences(rocketmq: Transcript, penstock: Transcript) -> dict[tuple[str, str], tuple[str, str]]:
    """(step, field) -> (RocketMQ's value, Penstock's value), where they are not the same."""
    assert list(rocketmq) == list(penstock), "the sessions had different steps"
    found = {}
    for step, left in rocketmq.items():
        right = penstock[step]
        for name in sorted(left.keys() | right.keys()):
            if step.endswith(" settings") and name not in right:
                continue  # RocketMQ has hundreds, most of them about Java.
            if name == "header" and left["form"] != right["form"]:
                continue  # Only one of them is JSON, with names.
            pair = left.get(name, ABSENT), right.get(name, ABSENT)
            if pair[0] != pair[1]:
                found[step, name] = pair
    return found
