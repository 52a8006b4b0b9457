"""The signatures of a request: RocketMQ's (1) and Penstock's (2). A request carries one of them.

    1  `Signature`          base64(HMAC-SHA1(secret, text)); text: the values of all other ext fields, in the order of
                            their names (UTF-16), without separators, then the body
    2  `PenstockSignature`  base64(HMAC-SHA256(secret, text)); text: code, flag, version, language, remark, and name
                            and value of every other ext field with their lengths, then length and bytes of the body

Signature 1 covers neither names nor borders: bytes can move from the body into a field that was not there, with the
same text. That is RocketMQ's form, so servers take it, but only with fields that are defined (`known_fields`).
Three clients differ: Go leaves `SecurityToken` out although it sends it, and Java up to 4.9.3 leaves out
`_UNIQUE_KEY_QUERY`. A server that cannot ask takes either.

Signature 2 covers everything but the request number, which pairs answers. A server announces it in the answer to a
request with signature 1 and a stamp, with a proof that needs the user's secret (`announcement`): nobody else can make
a client believe it. Pure functions.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from collections.abc import Iterator, Mapping

from penstock.protocol.codes import V4_9_3
from penstock.protocol.command import Command

ACCESS_KEY_FIELD = "AccessKey"
SIGNATURE_FIELD = "Signature"
TOKEN_FIELD = "SecurityToken"
UNIQUE_KEY_FIELD = "_UNIQUE_KEY_QUERY"
# Base64 of the 20 bytes of SHA-1.
SIGNATURE_SIZE = 28
SIGNATURE2_FIELD = "PenstockSignature"
_DOMAIN2, _DOMAIN_ANNOUNCED = b"penstock request signature 2\n", b"penstock announces signature 2\n"
# A larger body is not copied to be signed.
_JOINED_MAX = 16 * 1024
_NUMBERS2, _SIZE = struct.Struct(">iiii"), struct.Struct(">Q")


def sign(secret: str, fields: Mapping[str, str], body: bytes | bytearray, leave_out: str = "") -> str:
    """The signature of a request whose ext fields are complete but for the signature itself."""
    names = [name for name in fields if name not in (SIGNATURE_FIELD, leave_out)]
    if not all(name.isascii() for name in names):
        # Java compares UTF-16 units, in which what lies beyond the first plane sorts before U+E000.
        names.sort(key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    else:
        names.sort()
    text = "".join([fields[name] for name in names]).encode("utf-8", "surrogatepass")
    digest = hmac.new(secret.encode(), text, hashlib.sha1)
    if body:
        digest.update(body)
    return base64.b64encode(digest.digest()).decode()


def is_signed(secret: str, fields: Mapping[str, str], body: bytes | bytearray, version: int) -> bool:
    """Whether the signature in `fields` is the one that the holder of the secret would have made."""
    given = fields.get(SIGNATURE_FIELD, "").encode("utf-8", "surrogatepass")
    if len(given) != SIGNATURE_SIZE:
        return False
    return any(
        hmac.compare_digest(given, sign(secret, fields, body, leave_out).encode())
        for leave_out in _left_out(fields, version)
    )


def sign2(secret: str, command: Command) -> str:
    """Signature 2 of a request that is complete but for the signature itself."""
    fields = command.fields
    names = sorted(name for name in fields if name != SIGNATURE2_FIELD)
    numbers = _NUMBERS2.pack(command.code, command.flag, command.version, len(names))
    parts: list[bytes | bytearray] = [_DOMAIN2, numbers]
    for text in (command.language, command.remark or ""):
        _add_sized(parts, text)
    for name in names:
        _add_sized(parts, name)
        _add_sized(parts, fields[name])
    parts.append(_SIZE.pack(len(command.body)))
    if len(command.body) <= _JOINED_MAX:
        parts.append(command.body)
        return base64.b64encode(hmac.digest(secret.encode(), b"".join(parts), "sha256")).decode()
    digest = hmac.new(secret.encode(), b"".join(parts), hashlib.sha256)
    digest.update(command.body)
    return base64.b64encode(digest.digest()).decode()


def is_signed2(secret: str, command: Command) -> bool:
    """Whether signature 2 of a request is the one that the holder of the secret would have made."""
    given = command.fields.get(SIGNATURE2_FIELD, "").encode("utf-8", "surrogatepass")
    return hmac.compare_digest(given, sign2(secret, command).encode())


def announcement(secret: str, stamp: str, *, refused: bool = False) -> str:
    """What a server that knows the secret answers to a request with signature 1 and this stamp: it takes 2.
    `refused`: it did not carry the request out, because of its signature."""
    kind = "2-refused-" if refused else "2-"
    proof = hmac.digest(secret.encode(), _DOMAIN_ANNOUNCED + (kind + stamp).encode(), "sha256")
    return kind + base64.b64encode(proof).decode()


def is_announced(secret: str, stamp: str, given: str, *, refused: bool = False) -> bool:
    """Whether an answer's announcement was made by a server that knows the secret, for this request."""
    wanted = announcement(secret, stamp, refused=refused).encode()
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), wanted)


def _add_sized(parts: list[bytes | bytearray], text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    parts += (_SIZE.pack(len(data)), data)


def _left_out(fields: Mapping[str, str], version: int) -> Iterator[str]:
    """Which field this client may not have signed; first that it signed all of them."""
    yield ""
    if TOKEN_FIELD in fields:
        yield TOKEN_FIELD
    if UNIQUE_KEY_FIELD in fields and version <= V4_9_3:
        yield UNIQUE_KEY_FIELD
