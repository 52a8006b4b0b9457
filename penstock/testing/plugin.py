"""Fixtures for everybody's pytest: a broker of one's own, started when a test asks for it.

    def test_something(penstock_broker):            one broker per test
        producer = penstock.Producer(penstock_broker)

    def test_other(penstock_broker_session):        one for the whole run: use topics of your own

Registered as a pytest plugin by the installed package (`pytest11`), so nothing has to be imported. Without a
test that asks for it, it costs nothing but this file.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def penstock_broker() -> Iterator[str]:
    """Address of the name server of a broker that lives as long as the test."""
    from penstock.testing import broker

    with broker() as address:
        yield address


@pytest.fixture(scope="session")
def penstock_broker_session() -> Iterator[str]:
    """Address of the name server of a broker that lives as long as the whole run."""
    from penstock.testing import broker

    with broker() as address:
        yield address
