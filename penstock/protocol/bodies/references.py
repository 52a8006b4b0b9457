"""fastjson's references: where one object occurs twice, its writer puts `{"$ref":"$.a.b[0]"}` for the later ones.

Rules: a reference becomes a copy of what it points at. It may point at anything written out in the document,
not at another reference, at something that holds one, or at an object around itself, and all copies together
are limited: three references to three references to ... would otherwise be an endless document in few bytes.
References are read, never written. Pure functions.
"""

from __future__ import annotations

import re

from penstock.errors import CodecError
from penstock.metadata.fastjson import JsonValue

COPIED_VALUES_MAX = 100_000
_STEP = re.compile(r"\.((?:[^.\[\]\\]|\\.)+)|\[(\d{1,9})\]")


def has_references(data: bytes) -> bool:
    """Whether a look at the values is worth it."""
    return b"$ref" in data


def resolve_references(document: JsonValue, source: str) -> JsonValue:
    """The document with copies in place of references."""
    return _Resolver(document, source).resolved(document)


class _Resolver:
    def __init__(self, document: JsonValue, source: str) -> None:
        self._document = document
        self._source = source
        self._left = COPIED_VALUES_MAX

    def resolved(self, value: JsonValue) -> JsonValue:
        path = _reference(value)
        if path is not None:
            return self._copy(self._find(path), path)
        if isinstance(value, dict):
            return {key: self.resolved(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.resolved(item) for item in value]
        return value

    def _find(self, path: str) -> JsonValue:
        value = self._document
        at = 1
        while path.startswith("$") and at < len(path):
            step = _STEP.match(path, at)
            if step is None:
                break
            name, index = step.groups()
            if name is not None and isinstance(value, dict):
                name = re.sub(r"\\(.)", r"\1", name)
                if name not in value:
                    break
                value = value[name]
            elif index is not None and isinstance(value, list) and int(index) < len(value):
                value = value[int(index)]
            else:
                break
            at = step.end()
        if at == 1 or at != len(path):
            raise CodecError(f"{self._source}: the reference {path[:80]!r} leads nowhere")
        return value

    def _copy(self, value: JsonValue, path: str) -> JsonValue:
        self._left -= 1
        if self._left < 0 or _reference(value) is not None:
            reason = "holds another reference" if self._left >= 0 else "makes the document too large"
            raise CodecError(f"{self._source}: what {path[:80]!r} refers to {reason}")
        if isinstance(value, dict):
            return {key: self._copy(item, path) for key, item in value.items()}
        if isinstance(value, list):
            return [self._copy(item, path) for item in value]
        return value


def _reference(value: JsonValue) -> str | None:
    if isinstance(value, dict) and len(value) == 1:
        path = value.get("$ref")
        return path if isinstance(path, str) else None
    return None
