"""Randomness: from the system, or from a seed that makes a run repeatable."""

from __future__ import annotations

import random
import secrets
from typing import Protocol


class Entropy(Protocol):
    """What the rest of Penstock may ask of chance. Only `secret_bytes` is fit for secrets."""

    def below(self, limit: int) -> int:
        """A whole number in [0, limit)."""

    def fraction(self) -> float:
        """A number in [0, 1)."""

    def secret_bytes(self, count: int) -> bytes:
        """Random bytes that do not follow from any others that were handed out."""

    def bytes(self, count: int) -> bytes:
        """Random bytes."""


class SeededEntropy:
    """The same seed gives the same numbers, so that a failing run can be played again."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._random = random.Random(seed)

    def below(self, limit: int) -> int:
        return self._random.randrange(limit)

    def fraction(self) -> float:
        return self._random.random()

    def secret_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)


class SystemEntropy(SeededEntropy):
    """Seeded by the operating system, different in every process."""

    def __init__(self) -> None:
        super().__init__(random.SystemRandom().getrandbits(64))

    def secret_bytes(self, count: int) -> bytes:
        return secrets.token_bytes(count)
