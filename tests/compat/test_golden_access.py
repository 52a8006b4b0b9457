"""The examples of docs/formats/access.md against the product, byte for byte."""

from __future__ import annotations

import hashlib
import hmac

from penstock.security.hello import Hello
from penstock.security.signatures import sign
from tests.compat.test_golden_bytes import GOLDEN

SECRET, DIALLER, LISTENER = "example cluster secret", b"d" * 16, b"l" * 16


def test_the_hello_follows_the_rules() -> None:
    def proof(side: bytes) -> bytes:
        return hmac.new(SECRET.encode(), side + DIALLER + LISTENER, hashlib.sha256).digest()

    assert GOLDEN["hello-begin"] == b"PSTKHELO" + DIALLER
    assert b"PSTKHELO" + LISTENER + proof(b"listener") == GOLDEN["hello-answer"]
    assert proof(b"dialler") == GOLDEN["hello-proof"]


def test_the_hello_is_what_is_written_and_read() -> None:
    dialler, listener = Hello(SECRET, DIALLER, dials=True), Hello(SECRET, LISTENER, dials=False)
    assert dialler.begin() == GOLDEN["hello-begin"]
    assert listener.feed(GOLDEN["hello-begin"]) == GOLDEN["hello-answer"]
    assert dialler.feed(GOLDEN["hello-answer"]) == GOLDEN["hello-proof"]
    assert listener.feed(GOLDEN["hello-proof"]) == b""
    assert (dialler.is_done, listener.is_done) == (True, True)


def test_the_signature_on_the_page() -> None:
    fields = {"AccessKey": "ak", "queueId": "0", "topic": "T"}
    assert sign("sk", fields, b"hi") == "mkoio365tMrLGezPv94Zx/ECkWI="
