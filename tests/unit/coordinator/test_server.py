"""Several coordinators over one metadata store: who leads, who takes over, what the others answer; one on a file."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.coordinator.leadership import Lead
from penstock.coordinator.metadata.embedded import EmbeddedMetadata
from penstock.coordinator.options import CoordinatorOptions
from penstock.coordinator.parts import Shared
from penstock.coordinator.server import Coordinator
from penstock.coordinator.set_record import set_path
from penstock.errors import ConnectError, MetadataLockedError, MetadataUnavailableError
from penstock.protocol.bodies.controller import BrokerReplicasInfo
from penstock.protocol.codes import RequestCode
from penstock.remoting import Connection, ProcessorTable
from penstock.runtime import Runtime
from penstock.testing.metadata import MemoryEnsemble, MemoryMetadata
from tests.support.coordinator_wire import QUICK, FakeBroker, beating, body_of, brokers, coordinator, leading
from tests.waiting import until

# Two thirds of it are more than a busy machine stands still.
SESSION_MS = 1_500


@contextlib.asynccontextmanager
async def pair(**options: object) -> AsyncIterator[tuple[Coordinator, Coordinator, MemoryEnsemble]]:
    """A leader, one that stands by, and their store."""
    ensemble = MemoryEnsemble(session_timeout_ms=SESSION_MS)
    async with coordinator(ensemble, **options) as one:
        await leading(one)
        async with coordinator(ensemble, **options) as two:
            await until(lambda: two.leadership.leader == one.address)
            yield one, two, ensemble


def store_of(server: Coordinator) -> MemoryMetadata:
    assert isinstance(server.store, MemoryMetadata)
    return server.store


# -- who leads -----------------------------------------------------------------------------------------------


@pytest.mark.feature("metadata-store", "tubemq")
@pytest.mark.seed("S0-29")
@pytest.mark.seed("S0-16")
@pytest.mark.seed("S0-17")
@pytest.mark.seed("S0-18")
@pytest.mark.seed("S0-31")
def test_one_leads_and_the_other_answers_questions_refuses_changes_and_names_the_leader() -> None:
    async def go() -> None:
        async with pair() as (one, two, _), brokers(1) as (broker,):
            await broker.join(one)
            refused = [
                await broker.beat(two),
                await broker.elect(two, 1),
                await broker.alter(two, 1, epoch=1, set_epoch=1),
                await broker.ask(
                    two,
                    RequestCode.CONTROLLER_REGISTER_BROKER,
                    clusterName="c",
                    brokerName="broker-a",
                    brokerId=1,
                    brokerAddress=broker.address,
                ),
                await broker.ask(
                    two,
                    RequestCode.CONTROLLER_APPLY_BROKER_ID,
                    clusterName="c",
                    brokerName="x",
                    appliedBrokerId=1,
                    registerCheckCode="x",
                ),
                await broker.ask(two, RequestCode.CLEAN_BROKER_DATA, brokerName="broker-a"),
                await broker.ask(
                    two,
                    RequestCode.BROKER_HEARTBEAT,
                    clusterName="c",
                    brokerName="broker-a",
                    brokerAddr=broker.address,
                ),
            ]
            for answer in refused:
                assert answer.code == 2007
                assert answer.fields == {"leaderAddress": one.address, "term": "1"}
                assert one.address in (answer.remark or "")
            await two.copies.refresh()
            data = await broker.ask(two, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, b'["broker-a"]')
            assert BrokerReplicasInfo.decode(data.body).sets["broker-a"].master_broker_id == 1
            replicas = await broker.ask(two, RequestCode.CONTROLLER_GET_REPLICA_INFO, brokerName="broker-a")
            assert replicas.fields["masterEpoch"] == "1"
            next_id = await broker.ask(
                two, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, clusterName="c", brokerName="broker-a"
            )
            assert next_id.fields["nextBrokerId"] == "2"
            about = await broker.ask(two, RequestCode.CONTROLLER_GET_METADATA_INFO)
            assert about.fields["controllerLeaderAddress"] == one.address
            assert about.fields["isLeader"] == "false"
            assert len(about.fields["peers"].split(";")) == 2
            status = body_of(await broker.ask(two, RequestCode.COORDINATOR_STATUS))
            assert (status["isLeader"], status["leader"]) == (False, one.address)

    asyncio.run(go())


def test_who_is_alive_is_the_leaders_word_whoever_is_asked() -> None:
    async def alive(asking: FakeBroker, at: Coordinator) -> list[bool]:
        await at.copies.refresh()
        data = await asking.ask(at, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, b'["broker-a"]')
        return [member.alive for member in BrokerReplicasInfo.decode(data.body).sets["broker-a"].in_sync]

    async def go() -> None:
        async with pair() as (one, two, _), brokers(1, 2) as (broker, asking):
            await broker.join(one)
            async with asyncio.timeout(60):
                while await alive(asking, two) != [True]:
                    await broker.beat(one)
                assert await alive(asking, one) == [True]
                await broker.client.close()
                for each in (one, two):
                    while await alive(asking, each) != [False]:
                        pass

    asyncio.run(go())


@pytest.mark.feature("metadata-store", "tubemq")
@pytest.mark.seed("S0-30", "S0-36")
@pytest.mark.seed("S0-38")
@pytest.mark.fault("F1")
@pytest.mark.invariant("I14")
def test_when_the_leader_stops_the_other_takes_over_and_the_masters_go_on() -> None:
    async def go() -> None:
        async with pair() as (one, two, _), brokers(1, 2) as (first, second):
            events: list[tuple[Lead, int]] = []
            two.leadership.listen(lambda event, term: events.append((event, term)))
            for broker in (first, second):
                await broker.join(one)
            await first.alter(one, 1, 2, epoch=1, set_epoch=1)
            await one.stop()
            await leading(two)
            assert events == [(Lead.TOOK_OVER, 2)], "listeners are told of the take-over"
            state = await first.state(two)
            assert (state.master_broker_id, state.master_epoch, state.term) == (1, 1, 2)
            assert state.lease_ms > 0
            await second.beat(two)
            assert (await first.alter(two, 1, epoch=1, set_epoch=2)).code in (0, 2013)

    asyncio.run(go())


@pytest.mark.fault("F1")
@pytest.mark.invariant("I6")
def test_a_new_leader_elects_for_a_master_that_died_along_with_the_old_one() -> None:
    async def go() -> None:
        async with pair() as (one, two, _), brokers(1, 2) as (first, second):
            for broker in (first, second):
                await broker.join(one)
            await second.beat(one)
            await first.alter(one, 1, 2, epoch=1, set_epoch=1)
            await first.close()
            store_of(one).pause()
            async with beating(two, second):
                await until(lambda: bool(second.notices))
            assert second.notices[-1].master_broker_id == 2
            assert second.notices[-1].term == 2
            # Whatever the old leader believes, it grants nothing and changes nothing.
            assert not one.leadership.is_sure
            assert (await second.beat(one)).code == 2007
            store_of(one).heal()
            await until(lambda: one.leadership.leader == two.address)

    asyncio.run(go())


@pytest.mark.fault("F11")
def test_a_leader_cut_off_for_a_moment_goes_on_in_its_term_and_elects_nobody() -> None:
    async def go() -> None:
        ensemble = MemoryEnsemble(session_timeout_ms=3_000)
        async with coordinator(ensemble) as one, brokers(1, 2) as (first, second):
            await leading(one)
            for broker in (first, second):
                await broker.join(one)
            await second.beat(one)
            await first.alter(one, 1, 2, epoch=1, set_epoch=1)
            events: list[Lead] = []
            one.leadership.listen(lambda event, term: events.append(event))
            async with beating(one, first, second):
                ensemble.stop_serving()
                await until(lambda: events == [Lead.UNSURE])
                assert (await first.beat(one)).code == 2007, "nobody is led by one who is not sure"
                ensemble.serve_again()
                await until(lambda: events == [Lead.UNSURE, Lead.RESUMED])
                beats = first.beats
                await until(lambda: first.beats >= beats + 10)
                state = await first.state(one)
            assert (state.master_broker_id, state.master_epoch, state.term) == (1, 1, 1)
            assert second.notices == []

    asyncio.run(go())


@pytest.mark.fault("F11")
def test_a_leader_whose_session_is_over_leads_again_in_a_new_term_and_elects_nobody() -> None:
    async def go() -> None:
        async with (
            coordinator(MemoryEnsemble(session_timeout_ms=3_000)) as one,
            brokers(1, 2) as (first, second),
        ):
            await leading(one)
            for broker in (first, second):
                await broker.join(one)
            await second.beat(one)
            await first.alter(one, 1, 2, epoch=1, set_epoch=1)
            events: list[tuple[Lead, int]] = []
            one.leadership.listen(lambda event, term: events.append((event, term)))
            async with beating(one, first, second):
                store_of(one).expire()
                await until(lambda: (Lead.TOOK_OVER, 2) in events)
                await leading(one)
                beats = first.beats
                await until(lambda: first.beats >= beats + 10)
                state = await first.state(one)
            assert events == [(Lead.RESTED, 1), (Lead.TOOK_OVER, 2)]
            assert (state.master_broker_id, state.master_epoch, state.term) == (1, 1, 2)

    asyncio.run(go())


@pytest.mark.fault("F12")
@pytest.mark.invariant("I6")
def test_a_set_that_was_written_in_a_later_term_ends_the_lead(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        async with coordinator() as one, brokers(1) as (broker,):
            await leading(one)
            await broker.join(one)
            path = set_path("c", "broker-a")
            entry = await one.store.get(path)
            assert entry is not None
            await one.store.set(path, entry.value.replace(b'"term":1', b'"term":99'))
            answer = await broker.ask(
                one,
                RequestCode.CONTROLLER_APPLY_BROKER_ID,
                clusterName="c",
                brokerName="broker-a",
                appliedBrokerId=2,
                registerCheckCode="x",
            )
            assert answer.code in (2007, 14)
            assert not one.leadership.is_sure
            assert (await broker.beat(one)).code == 2007

    asyncio.run(go())
    assert "set the entry /coordinator/term to 99" in caplog.text


def test_requests_that_wait_when_the_lead_is_lost_are_refused() -> None:
    async def go() -> None:
        async with pair() as (one, two, _), brokers(1) as (broker,):
            await broker.join(one)
            store_of(one).cut(silently=True)
            answer = await broker.alter(one, 1, 2, epoch=9, set_epoch=1)
            assert answer.code == 2000, "refusals need no store"
            waiting = asyncio.create_task(
                broker.ask(
                    one,
                    RequestCode.CONTROLLER_APPLY_BROKER_ID,
                    clusterName="c",
                    brokerName="broker-a",
                    appliedBrokerId=2,
                    registerCheckCode="x",
                )
            )
            await leading(two)
            store_of(one).heal()
            assert (await waiting).code in (2007, 14)

    asyncio.run(go())


def test_a_request_that_the_store_does_not_answer_ends() -> None:
    async def go() -> None:
        ensemble = MemoryEnsemble(session_timeout_ms=60_000)
        async with coordinator(ensemble, request_timeout_ms=1_000) as one, brokers(1) as (broker,):
            await leading(one)
            await broker.join(one)
            store_of(one).pause()
            answer = await broker.ask(
                one,
                RequestCode.CONTROLLER_APPLY_BROKER_ID,
                clusterName="c",
                brokerName="broker-a",
                appliedBrokerId=2,
                registerCheckCode="x",
            )
            assert answer.code == 14
            assert "1000 ms" in (answer.remark or "")
            store_of(one).heal()

    asyncio.run(go())


# -- copies --------------------------------------------------------------------------------------------------


@pytest.mark.feature("metadata-store", "tubemq")
@pytest.mark.seed("S0-19")
@pytest.mark.seed("S0-20")
@pytest.mark.seed("S0-21")
@pytest.mark.seed("S0-22")
def test_a_copy_is_at_most_3_s_old_or_the_answer_says_so() -> None:
    assert (CoordinatorOptions().stale_max_ms, CoordinatorOptions().stale_wait_ms) == (3_000, 3_000)

    async def go() -> None:
        for wait_ms in (300, 60_000):
            async with (
                pair(stale_max_ms=300, stale_wait_ms=wait_ms) as (one, two, ensemble),
                brokers(1) as (broker,),
            ):
                await broker.join(one)
                ensemble.stop_serving()
                await asyncio.sleep(0.35)  # the copy is too old then
                await (refused if wait_ms == 300 else answered_later)(broker, two, ensemble)

    async def refused(broker: FakeBroker, two: Coordinator, ensemble: MemoryEnsemble) -> None:
        answer = await broker.ask(two, RequestCode.CONTROLLER_GET_REPLICA_INFO, brokerName="broker-a")
        assert answer.code == 14
        assert "ms old, over 300" in (answer.remark or "")

    async def answered_later(broker: FakeBroker, two: Coordinator, ensemble: MemoryEnsemble) -> None:
        asked = asyncio.create_task(
            broker.ask(two, RequestCode.CONTROLLER_GET_REPLICA_INFO, brokerName="broker-a")
        )
        await asyncio.sleep(0.1)
        ensemble.serve_again()
        assert (await asked).code == 0, "one that comes in time is waited for"

    asyncio.run(go())


def test_a_set_that_cannot_be_read_is_said_and_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def go() -> None:
        ensemble = MemoryEnsemble(session_timeout_ms=SESSION_MS)
        client = ensemble.client()
        await client.start()
        await client.create(set_path("c", "damaged"), b"{")
        async with coordinator(ensemble) as one, brokers(1) as (broker,):
            await until(lambda: one.leadership.is_sure and one.sets.is_loaded)
            await broker.join(one)
            assert (await broker.state(one)).lease_ms > 0
            await one.copies.refresh()
            data = await broker.ask(
                one, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, b'["broker-a","damaged"]'
            )
            assert list(BrokerReplicasInfo.decode(data.body).sets) == ["broker-a"]
        await client.stop()

    with caplog.at_level(logging.ERROR):
        asyncio.run(go())
    assert caplog.text.count("/brokers/c/damaged cannot be read") == 1


# -- registry ------------------------------------------------------------------------------------------------


@pytest.mark.feature("registry", "fifth-seed")
@pytest.mark.seed("S4-18")
@pytest.mark.seed("S4-63")
@pytest.mark.seed("S4-64")
def test_brokers_and_topic_partitions_are_in_the_registry_while_they_are_there() -> None:
    async def go() -> None:
        async with pair() as (one, two, ensemble), brokers(1, 2) as (first, second):
            for broker in (first, second):
                await broker.join(one)
                await broker.beat(one)
            await first.beat(one, topics={"T": (2, 2, 6), "%RETRY%g": (1, 1, 6)}, topics_version=1)
            looking = ensemble.client()
            await looking.start()

            async def children(path: str) -> tuple[str, ...]:
                return await looking.children(path)

            async def wait_for(path: str, *names: str) -> None:
                async def are_there() -> bool:
                    return await children(path) == names

                await until(are_there, lambda: f"{names} below {path}")

            await wait_for("/live/brokers/c/broker-a", "1", "2")
            await wait_for("/live/topics/T", "broker-a-0", "broker-a-1")
            await wait_for("/live/topics", "%RETRY%g", "T")
            await wait_for("/live/coordinators", *sorted((one.address, two.address)))
            entry = await looking.get("/live/brokers/c/broker-a/1")
            assert entry is not None
            assert entry.is_ephemeral
            assert json.loads(entry.value) == {
                "address": "10.0.0.1:10911",
                "haAddress": "10.0.0.1:10912",
                "isMaster": True,
            }
            await first.beat(one, topics={"%RETRY%g": (1, 1, 6)}, topics_version=2)
            await wait_for("/live/topics", "%RETRY%g")
            await second.close()
            await wait_for("/live/brokers/c/broker-a", "1")
            await one.stop()
            await wait_for("/live/brokers/c/broker-a")
            await leading(two)
            await first.beat(two)
            await wait_for("/live/brokers/c/broker-a", "1")
            await looking.stop()

    asyncio.run(go())


def test_entries_left_over_from_a_session_that_is_about_to_end_are_replaced() -> None:
    async def go() -> None:
        ensemble = MemoryEnsemble(session_timeout_ms=SESSION_MS)
        stranger = ensemble.client()
        await stranger.start()
        await stranger.create("/live/brokers/c/broker-a/1", b"old", ephemeral=True)
        async with coordinator(ensemble) as one, brokers(1) as (broker,):
            await leading(one)
            await broker.join(one)
            await broker.beat(one)
            await until(lambda: one.registry.is_settled and not one.registry.is_empty)
            entry = await stranger.get("/live/brokers/c/broker-a/1")
            assert entry is not None
            assert entry.value != b"old"
        await stranger.stop()

    asyncio.run(go())


def test_the_registry_holds_so_many_partitions_at_most() -> None:
    async def go() -> None:
        async with coordinator(registry_partitions_max=10) as one, brokers(1) as (broker,):
            await leading(one)
            await broker.join(one)
            await broker.beat(one, topics={"A": (6, 6, 6), "B": (6, 6, 6), "C": (4, 4, 6)}, topics_version=1)
            await until(lambda: one.registry.is_settled and not one.registry.is_empty)
            await until(lambda: len(one.registry.paths("/live/topics/")) == 10)

    asyncio.run(go())


# -- heartbeats ----------------------------------------------------------------------------------------------


@pytest.mark.feature("heartbeats", "tubemq")
@pytest.mark.seed("S0-55")
@pytest.mark.seed("S0-57")
def test_the_scan_takes_out_who_was_silent() -> None:
    async def go() -> None:
        async with coordinator(broker_timeout_ms=200) as one, brokers(1) as (broker,):
            await leading(one)
            gone: list[str] = []
            one.heartbeats.brokers.listen(lambda node_id, info: gone.append(f"{node_id} {info.gone}"))
            await broker.join(one)
            await broker.beat(one)
            # On a slow machine it may be silent for so long before the test is, too.
            await until(lambda: gone and "c/broker-a/1" not in one.heartbeats.brokers)
            assert set(gone) == {"c/broker-a/1 Gone.TIMEOUT"}
            assert one.meters.counters["timed_out"] == len(gone)
            await broker.beat(one)
            assert "c/broker-a/1" in one.heartbeats.brokers, "it is back as soon as it reports"

    asyncio.run(go())


@pytest.mark.feature("heartbeats", "tubemq")
@pytest.mark.seed("S0-49")
@pytest.mark.seed("S0-50")
@pytest.mark.seed("S0-51")
@pytest.mark.seed("S0-52")
@pytest.mark.seed("S0-56")
def test_the_timeouts_are_options() -> None:
    options = CoordinatorOptions()
    assert (options.producer_timeout_ms, options.consumer_timeout_ms, options.broker_timeout_ms) == (
        30_000,
        45_000,
        25_000,
    )
    assert options.scan_interval_ms == 1_000


class Noting:
    """A part that writes down what it is told."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.told: list[str] = []

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.EXPLAIN, lambda connection, command: command.answer(body=b"noted"))

    def lead_changed(self, event: Lead, term: int) -> None:
        self.told.append(f"{event.value} {term}")

    def tick(self, now_ms: int) -> None:
        if "tick" not in self.told:
            self.told.append("tick")

    def connection_closed(self, connection: Connection) -> None:
        self.told.append("closed")

    def status(self) -> dict[str, object]:
        return {"notes": len(self.told)}

    async def stop(self) -> None:
        self.told.append("stop")


def test_further_parts_answer_and_are_told_what_happens() -> None:
    made: list[Noting] = []

    def make(shared: Shared) -> Noting:
        made.append(Noting(shared))
        return made[-1]

    async def go() -> None:
        async with coordinator(parts=(make,)) as one:
            await leading(one)
            async with brokers(1) as (broker,):
                assert (await broker.ask(one, RequestCode.EXPLAIN)).body == b"noted"
                assert body_of(await broker.ask(one, RequestCode.COORDINATOR_STATUS))["notes"] > 0
            await until(lambda: "closed" in made[0].told and "tick" in made[0].told)
            assert made[0].shared.sets is one.sets

    asyncio.run(go())
    assert made[0].told[0] == "took over 1"
    assert made[0].told[-2:] == ["rested 1", "stop"]


# -- life ----------------------------------------------------------------------------------------------------


def test_a_store_out_of_reach_is_named_and_nothing_is_left_behind() -> None:
    async def go() -> None:
        ensemble = MemoryEnsemble()
        ensemble.stop_serving()
        server = Coordinator(CoordinatorOptions(**QUICK), ensemble.client(), runtime=Runtime.system())
        with pytest.raises(MetadataUnavailableError, match="memory:"):
            await server.start()
        await server.stop()
        async with coordinator() as one:
            port = int(one.address.rpartition(":")[2])
            other = Coordinator(
                CoordinatorOptions(**{**QUICK, "port": port}),
                MemoryEnsemble().client(),
                runtime=Runtime.system(),
            )
            with pytest.raises(ConnectError, match="cannot listen"):
                await other.start()

    asyncio.run(go())


@pytest.mark.feature("metadata-store", "tubemq")
@pytest.mark.seed("S0-14")
@pytest.mark.seed("S0-33")
@pytest.mark.seed("S0-34")
@pytest.mark.fault("F1")
def test_one_coordinator_alone_keeps_its_sets_in_a_file(tmp_path: Path) -> None:
    def on_file() -> Coordinator:
        return Coordinator(
            CoordinatorOptions(**QUICK), EmbeddedMetadata(tmp_path / "m.db"), runtime=Runtime.system()
        )

    async def go() -> None:
        async with brokers(1, 2) as (first, second):
            one = on_file()
            await one.start()
            await leading(one)
            for broker in (first, second):
                await broker.join(one)
            with pytest.raises(MetadataLockedError):
                await on_file().start()
            await one.stop()
            two = on_file()
            await two.start()
            await leading(two)
            state = await first.state(two)
            assert (state.master_broker_id, state.master_epoch, state.term) == (1, 1, 2)
            assert state.lease_ms > 0
            await two.stop()

    asyncio.run(go())


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("port", 65_536),
        ("host", ""),
        ("host", "0.0.0.0"),
        ("master_lease_ms", 50),
        ("consumer_timeout_ms", 0),
        ("lease_margin_ms", -1),
        ("metadata", "redis:x"),
    ],
)
def test_options_out_of_range_are_refused(option: str, value: object) -> None:
    with pytest.raises(Exception, match=option):
        CoordinatorOptions(**{option: value})


def test_a_wildcard_address_needs_one_that_others_can_dial() -> None:
    options = CoordinatorOptions(host="0.0.0.0", advertised_address="coordinator.example.org:9877")
    assert options.set_policy.lease_ms == 2_000
    assert FakeBroker().name == "broker-a"
