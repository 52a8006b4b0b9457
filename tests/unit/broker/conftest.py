"""What all tests of the broker's parts share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.unit.broker.journals import close_journals


@pytest.fixture(autouse=True)
def no_open_journals() -> Iterator[None]:
    yield
    asyncio.run(close_journals())
