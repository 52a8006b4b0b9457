"""`penstock coordinator` as a process: ready, its state in a file, stopped, refused; ZooKeeper out of reach."""

import asyncio
import json
from pathlib import Path

import pytest

import penstock
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.remoting import RemotingClient
from penstock.runtime import Runtime
from tests.unit.cli.test_servers import SMALL, failed_start, refused, refusing_address, serving
from tests.waiting import PATIENT_SENDS, wait_until


def status_of(address: str) -> dict[str, object]:
    """What a coordinator says about itself, once it leads."""

    async def ask() -> dict[str, object]:
        client = RemotingClient(runtime=Runtime.system())
        try:
            async with asyncio.timeout(60):
                while True:
                    answer = await client.call(address, Command(RequestCode.COORDINATOR_STATUS), 60_000)
                    status: dict[str, object] = json.loads(answer.body)
                    if status["isLeader"]:
                        return status
                    await asyncio.sleep(0.01)
        finally:
            await client.close()

    return asyncio.run(ask())


def test_it_is_ready_leads_and_stops_cleanly(tmp_path: Path) -> None:
    for term in (1, 2):
        with serving("coordinator", "--json", "--data", tmp_path, "--port", 0) as server:
            ready = server.ready
            assert ready["command"] == "coordinator"
            assert ready["metadata"] == f"sqlite:{tmp_path / 'coordinator' / 'metadata.db'}"
            status = status_of(ready["coordinator"])
            assert (status["term"], status["leader"]) == (term, ready["coordinator"])
            assert {"groups", "brokerSets"} <= status.keys(), "balancing is part of it"
            code, complaints = server.stop()
            assert code == 0
            assert "rror" not in complaints


def taken(consumer: penstock.Consumer, got: list[bytes]) -> list[bytes]:
    """What it has got, and what it gets now."""
    got += [message.body for message in consumer.poll(10, timeout_s=0.5)]
    return got


def test_up_with_a_coordinator_divides_queues_and_its_directory_serves_with_and_without(
    tmp_path: Path,
) -> None:
    ports = ("--port", 0, "--nameserver-port", 0)
    # Queues are free once the leases of the broker's previous life have expired.
    settings = ("--set=broker.partition_lease_ms=1000", "--set=coordinator.first_balance_ms=300")
    sent = 0
    for extra in ((), ("--coordinator-port", 0), ()):
        with serving("up", "--json", "--data", tmp_path, *ports, *settings, *SMALL, *extra) as server:
            ready = server.ready
            assert ("coordinator" in ready) == bool(extra)
            with penstock.Producer(ready["nameserver"], **PATIENT_SENDS) as producer:
                producer.send("T", b"%d" % sent)
                sent += 1
            options = {"coordinators": ready["coordinator"], "balance": "coordinator"} if extra else {}
            group = f"g{sent}"
            with penstock.Consumer(ready["nameserver"], group, start_from="first", **options) as consumer:
                consumer.subscribe("T")
                got: list[bytes] = []
                wait_until(lambda: len(taken(consumer, got)) >= sent, "all messages")  # noqa: B023 - called here
            assert sorted(got) == [b"%d" % number for number in range(sent)]
            code, complaints = server.stop()
            assert code == 0
            assert "rror" not in complaints


def test_a_line_for_people(tmp_path: Path) -> None:
    with serving("coordinator", "--data", tmp_path, "--port", 0) as server:
        assert server.ready["line"].startswith("penstock coordinator is ready: coordinator 127.0.0.1:")
        assert f"metadata sqlite:{tmp_path}" in server.ready["line"]


def test_a_file_that_another_one_owns_is_refused(tmp_path: Path) -> None:
    with serving("coordinator", "--json", "--data", tmp_path, "--port", 0):
        complaint = refused("coordinator", "--data", tmp_path, "--port", 0)
    assert complaint.count("\n") == 1
    assert "metadata.db" in complaint


def test_wrong_calls_are_refused(tmp_path: Path) -> None:
    assert "sqlite:PATH" in refused("coordinator", "--metadata", "redis:x", "--data", tmp_path)
    assert "listen-anywhere" in refused(
        "coordinator", "--host", "0.0.0.0", "--advertise", "c.example.org:9877", "--data", tmp_path
    )
    assert "advertised_address" in refused("coordinator", "--host", "0.0.0.0", "--data", tmp_path)


@pytest.mark.slow
@pytest.mark.seed("S0-6")
@pytest.mark.seed("S0-7")
@pytest.mark.fault("F11")
def test_a_zookeeper_out_of_reach_is_logged_with_its_address_and_ends_it_with_status_1(
    tmp_path: Path,
) -> None:
    impatient = (
        "from functools import partial\n"
        "import penstock.coordinator.metadata.addresses as addresses\n"
        "addresses.ZooKeeperOptions = partial(addresses.ZooKeeperOptions, connect_timeout_ms=300)"
    )
    with refusing_address() as address:
        log = failed_start(
            impatient,
            *("coordinator", "--port", 0, "--data", tmp_path, "--metadata", f"zookeeper:{address}"),
        )
    errors = [line for line in log.splitlines() if " ERROR " in line]
    assert len(errors) == 1
    assert address in errors[0]
