"""Under which name a coordinator is known to the others: the address that its configuration gives it."""

import asyncio

import pytest

from penstock.testing.metadata import MemoryEnsemble
from tests.support.coordinator_wire import coordinator, leading
from tests.waiting import until


@pytest.mark.seed("S0-25", "S0-26")
def test_a_coordinator_is_known_by_its_configured_host_and_port() -> None:
    async def go() -> None:
        ensemble = MemoryEnsemble()
        given = "coordinator-1.example.org:4711"
        async with coordinator(ensemble, advertised_address=given) as named:
            await leading(named)
            async with coordinator(ensemble) as other:
                await until(lambda: other.leadership.leader == given)
                looking = ensemble.client()
                await looking.start()
                assert await looking.children("/live/coordinators") == tuple(sorted((other.address, given)))
                await looking.stop()

    asyncio.run(go())
