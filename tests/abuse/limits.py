"""Which limits have a test here: `limit` marks one, and a test compares with all the options there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T", bound=Callable[..., None])
TESTED: dict[str, str] = {}


def limit(*names: str) -> Callable[[T], T]:
    """Mark a test as the one of these options, each named as in docs/configuration.md."""

    def mark(test: T) -> T:
        for name in names:
            TESTED[name] = test.__name__
        return test

    return mark
