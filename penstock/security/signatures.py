"""RocketMQ's request signature: what is signed, and whether it was.

    text       values of all ext fields but `Signature`, in the order of their names (UTF-16), then the body
    signature  base64(HMAC-SHA1(secret, text)), in the ext field `Signature`

Three clients differ: Go leaves `SecurityToken` out although it sends it, and Java up to 4.9.3 leaves out
`_UNIQUE_KEY_QUERY`. A server that cannot ask takes either. Code, flag, version and number of a request are not signed
by anybody; `freshness` has what Penstock's own clients do about that. Pure functions.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator, Mapping

from penstock.protocol.codes import V4_9_3

ACCESS_KEY_FIELD = "AccessKey"
SIGNATURE_FIELD = "Signature"
TOKEN_FIELD = "SecurityToken"
UNIQUE_KEY_FIELD = "_UNIQUE_KEY_QUERY"
# Base64 of the 20 bytes of SHA-1.
SIGNATURE_SIZE = 28


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


def _left_out(fields: Mapping[str, str], version: int) -> Iterator[str]:
    """Which field this client may not have signed; first that it signed all of them."""
    yield ""
    if TOKEN_FIELD in fields:
        yield TOKEN_FIELD
    if UNIQUE_KEY_FIELD in fields and version <= V4_9_3:
        yield UNIQUE_KEY_FIELD
