"""Proof of a shared secret before a connection is used: three messages, then the bytes of whatever it is for.

    dialler  -> listener    "PSTKHELO" | nonce 16
    listener -> dialler     "PSTKHELO" | nonce 16 | HMAC-SHA256(secret, "listener" | both nonces) 32
    dialler  -> listener    HMAC-SHA256(secret, "dialler" | both nonces) 32

Both sides prove it, neither shows it, and no proof is good for another connection. What does not begin so is closed
without a word. Sans-I/O: bytes in, bytes out.
"""

from __future__ import annotations

import hashlib
import hmac

from penstock.errors import FrameError

MAGIC = b"PSTKHELO"
NONCE_SIZE = 16
PROOF_SIZE = 32


def _proof(secret: bytes, side: bytes, dialler: bytes, listener: bytes) -> bytes:
    return hmac.new(secret, side + dialler + listener, hashlib.sha256).digest()


class Hello:
    """One side of it. `feed` until `is_done`; then `rest` is what came behind."""

    def __init__(self, secret: str, nonce: bytes, *, dials: bool) -> None:
        if len(nonce) != NONCE_SIZE:
            raise ValueError(f"a nonce has {NONCE_SIZE} bytes")
        self._secret = secret.encode()
        self._nonce = nonce
        self._dials = dials
        self._other = b""
        self._data = b""
        self.is_done = False
        self.rest = b""

    def begin(self) -> bytes:
        """What is sent before anything was heard."""
        return MAGIC + self._nonce if self._dials else b""

    def feed(self, data: bytes) -> bytes:
        """What is answered; FrameError if the other side is not one of us."""
        self._data += data
        if not MAGIC.startswith(self._data[: len(MAGIC)]) and not self._other:
            raise FrameError("the peer does not know the cluster's hello")
        if self._dials:
            return self._as_dialler()
        return self._as_listener()

    def _as_dialler(self) -> bytes:
        size = len(MAGIC) + NONCE_SIZE + PROOF_SIZE
        if len(self._data) < size:
            return b""
        other = self._data[len(MAGIC) : len(MAGIC) + NONCE_SIZE]
        wanted = _proof(self._secret, b"listener", self._nonce, other)
        self._compare(wanted, self._data[len(MAGIC) + NONCE_SIZE : size])
        self._finish(size)
        return _proof(self._secret, b"dialler", self._nonce, other)

    def _as_listener(self) -> bytes:
        answer = b""
        if not self._other:
            size = len(MAGIC) + NONCE_SIZE
            if len(self._data) < size:
                return b""
            self._other = self._data[len(MAGIC) : size]
            self._data = self._data[size:]
            answer = MAGIC + self._nonce + _proof(self._secret, b"listener", self._other, self._nonce)
        if len(self._data) >= PROOF_SIZE:
            wanted = _proof(self._secret, b"dialler", self._other, self._nonce)
            self._compare(wanted, self._data[:PROOF_SIZE])
            self._finish(PROOF_SIZE)
        return answer

    def _compare(self, wanted: bytes, given: bytes) -> None:
        if not hmac.compare_digest(wanted, given):
            raise FrameError("the peer has another cluster secret")

    def _finish(self, size: int) -> None:
        self.rest, self._data = self._data[size:], b""
        self.is_done = True
