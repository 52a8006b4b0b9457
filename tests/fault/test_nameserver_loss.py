"""Name servers that die, hang, or were never there: whoever has work to do goes on with the others.

What is shown: messages flow between clients and brokers without any name server; a name server that comes back
empty is told everything by the brokers, and nobody forgets a route meanwhile; a dead or silent one among several
costs the time of finding out, once. Figures are printed: `pytest -s`, or `-rP` after the run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from penstock.remoting import Connection, RemotingClient
from tests.fault.client_load import Load
from tests.fault.load_scenarios import drain, finish, new_history, wait_recovered
from tests.fault.operation_history import Outcome
from tests.fault.silent_peers import dead_address, hanging_peer, unreachable_peer
from tests.support.server_processes import broker, cluster, name_server, wait_known

OUTAGE_S = 0.8
# Nothing happens to the broker: a send has all the time that a busy machine takes.
PATIENT = {"send_timeout_ms": 60_000}
# Routes are asked for again so often that every outage, and the moments after it, are hit many times.
IMPATIENT = {"route_interval_ms": 100, "call_timeout_ms": 500}


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I13")
@pytest.mark.seed("S1-5")
@pytest.mark.seed("S2-5")
@pytest.mark.slow
def test_sends_and_deliveries_go_on_without_a_name_server(tmp_path: Path) -> None:
    with cluster(tmp_path) as (names, node):
        history = new_history(names.address)
        with Load(names.address, history, settings=IMPATIENT, producer_settings=PATIENT) as load:
            wait_recovered(load, history, time.monotonic())
            names.kill()
            gone = time.monotonic()
            time.sleep(OUTAGE_S)
            names.start()
            known = wait_known(names.address)
            wait_recovered(load, history, time.monotonic())
            drained = drain(load, names.address)
        figures = finish(history, names.address, node)
    sent = sum(send.started >= gone for send in history.of(Outcome.OK))
    print(f"\n[name server killed for a second under load] {figures}")
    print(f"  {sent} acknowledged since the kill; longest time without {history.longest_gap():.2f} s;")
    print(f"  the broker was known again {known:.2f} s after the restart; drained {drained:.2f} s")
    assert not history.of(Outcome.FAILED), history.of(Outcome.FAILED)[:3]
    assert not history.of(Outcome.UNKNOWN), history.of(Outcome.UNKNOWN)[:3]
    assert sent > 20


@pytest.mark.fault("F2")
@pytest.mark.invariant("I1")
@pytest.mark.seed("S1-2")
@pytest.mark.seed("S1-4")
@pytest.mark.seed("S1-13")
@pytest.mark.seed("S2-4")
@pytest.mark.slow
def test_clients_move_on_to_the_other_name_server(tmp_path: Path) -> None:
    """Both know the broker; one of them dies and comes back, then the other falls silent and wakes up."""
    with name_server(tmp_path / "one") as one, name_server(tmp_path / "two") as two:
        both = f"{one.address};{two.address}"
        with broker(tmp_path / "broker", both) as node:
            wait_known(one.address)
            wait_known(two.address)
            history = new_history(both)
            with Load(both, history, settings=IMPATIENT, producer_settings=PATIENT) as load:
                newcomers = []
                for lose, regain in ((one.kill, one.start), (two.pause, two.resume)):
                    wait_recovered(load, history, time.monotonic())
                    lose()
                    time.sleep(OUTAGE_S)
                    newcomers.append(first_send(both))
                    regain()
                    wait_known(one.address)
                    wait_known(two.address)
                drained = drain(load, both)
            figures = finish(history, both, node)
    print(f"\n[one of two name servers killed, then the other paused] {figures}")
    print(f"  a new producer's first send took {newcomers[0]:.2f} s and {newcomers[1]:.2f} s meanwhile;")
    print(f"  drained {drained:.2f} s")
    assert not history.of(Outcome.FAILED), history.of(Outcome.FAILED)[:3]
    assert not history.of(Outcome.UNKNOWN), history.of(Outcome.UNKNOWN)[:3]


def first_send(name_servers: str) -> float:
    """Seconds that a producer needs which has nothing yet, neither a name server nor a route."""
    asked = time.monotonic()
    with penstock.Producer(name_servers, group="newcomer", call_timeout_ms=500) as producer:
        producer.send("made-meanwhile", b"x")
        return time.monotonic() - asked


@contextmanager
def useless_peer(kind: str) -> Iterator[str]:
    if kind == "dead":
        yield dead_address()
        return
    with hanging_peer() if kind == "hanging" else unreachable_peer() as address:
        yield address


@pytest.mark.fault("F3")
@pytest.mark.seed("S1-12")
@pytest.mark.seed("S1-13")
@pytest.mark.seed("S1-14")
@pytest.mark.seed("S1-18")
@pytest.mark.seed("S1-21")
@pytest.mark.parametrize("kind", ["dead", "hanging", "unreachable"])
def test_a_useless_name_server_in_the_list_costs_little(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two name servers are given, one of which was never any good: everything works, whoever is asked first."""
    asked_for: list[str] = []
    connection = RemotingClient.connection

    async def noted(client: RemotingClient, address: str) -> Connection:
        asked_for.append(address)
        return await connection(client, address)

    monkeypatch.setattr(RemotingClient, "connection", noted)
    with useless_peer(kind) as useless, name_server(tmp_path / "nameserver") as names:
        told = f"{useless};{names.address}"
        with broker(tmp_path / "broker", told) as node:
            known = wait_known(names.address)
            first: list[float] = []
            more: list[int] = []
            for number, addresses in enumerate((told, f"{names.address};{useless}", told, told)):
                asked = time.monotonic()
                # An instance name of its own: each finds its name server by itself.
                with penstock.Producer(
                    addresses, instance_name=f"c{number}", call_timeout_ms=1_000
                ) as producer:
                    producer.send("orders", b"first")
                    first.append(time.monotonic() - asked)
                    before = asked_for.count(useless)
                    for _ in range(10):
                        producer.send("orders", b"more")
                    more.append(asked_for.count(useless) - before)
            asked = time.monotonic()
            with penstock.Consumer(told, group="g", start_from="first", call_timeout_ms=1_000) as consumer:
                consumer.subscribe("orders")
                for found, _ in enumerate(consumer, 1):
                    if found == 44:
                        break
                consuming = time.monotonic() - asked
            stopping = node.stop()
    print(
        f"\n[a {kind} name server in the list] registered with the other after {known:.2f} s; first sends took"
    )
    print(
        f"  {', '.join(f'{seconds:.2f}' for seconds in first)} s; 44 messages consumed in {consuming:.2f} s;"
    )
    print(f"  the broker stopped in {stopping:.2f} s")
    # The choice is remembered: ten sends do not ask the useless one again.
    assert max(more) < 10
