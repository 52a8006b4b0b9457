"""Offsets moved both ways between a directory and a real ZooKeeper; a broker that cannot reach one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kazoo.client import KazooClient

from penstock.cli.main import root
from penstock.coordinator.offsets import broker_id_of_set
from penstock.store import MessageStore
from penstock.testing.zookeeper import ZooKeeperEnsemble, why_unavailable, zookeeper_servers
from tests.support.sample_stores import SMALL
from tests.unit.cli.test_servers import failed_start, refusing_address

NUMBER = broker_id_of_set("c1", "b-a")
OFFSETS = {"T1@G1": {"0": 100, "1": 98}, "%RETRY%G1@G1": {"0": 9}, "T1@G2": {"3": -1}}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    if reason := why_unavailable():
        pytest.skip(reason)
    with zookeeper_servers(tmp_path_factory.mktemp("zookeeper")) as found:
        yield found


@pytest.fixture
def entries(servers: ZooKeeperEnsemble) -> Iterator[KazooClient]:
    client = KazooClient(servers.hosts)
    client.start()
    if client.exists("/tubemq"):
        client.delete("/tubemq", recursive=True)
    yield client
    client.stop()
    client.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    (folder / "config").mkdir(parents=True)
    (folder / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": OFFSETS}))
    return folder


def run(way: str, folder: Path, hosts: str, *more: object) -> Result:
    place = ("--zookeeper", hosts, "--cluster", "c1", "--name", "b-a")
    line = ["group", f"{way}-offsets", str(folder), *place, *map(str, more)]
    return CliRunner(env={"COLUMNS": "120", "TERM": "dumb"}).invoke(root, line)


def outcome(way: str, folder: Path, hosts: str, *more: object) -> dict[str, Any]:
    result = run(way, folder, hosts, "--json", *more)
    assert result.exit_code == 0, (result.output, result.exception)
    found: dict[str, Any] = json.loads(result.stdout)
    assert found.pop("broker_id") == NUMBER
    return found


def refused(result: Result) -> str:
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    return result.stderr


def entry(topic: str, group: str, queue: int) -> str:
    return f"/tubemq/consumers-v3/{group}/offsets/{topic}/{NUMBER}-{queue}"


def table(folder: Path) -> Any:
    return json.loads((folder / "config/consumerOffset.json").read_text())["offsetTable"]


@pytest.mark.java
def test_there_and_back(servers: ZooKeeperEnsemble, entries: KazooClient, path: Path, tmp_path: Path) -> None:
    hosts = servers.hosts
    left_out = ["T1@G2 queue 3: offset -1 of message 0"]
    planned = outcome("export", path, hosts, "--dry-run")
    assert planned == {"copied": 3, "kept": 0, "skipped": left_out, "dry_run": True}
    assert not entries.exists("/tubemq")
    assert outcome("export", path, hosts) == {**planned, "dry_run": False}
    assert entries.get(entry("T1", "G1", 0))[0] == b"0-100"
    assert entries.get(entry("%RETRY%G1", "G1", 0))[0] == b"0-9"
    assert not entries.exists(entry("T1", "G2", 3))
    again = outcome("export", path, hosts)
    assert (again["copied"], again["kept"]) == (0, 3)
    # Back, into a directory that has never had any.
    empty = tmp_path / "empty"
    empty.mkdir()
    assert outcome("import", empty, hosts, "--dry-run")["copied"] == 3
    assert not any(empty.iterdir())
    assert outcome("import", empty, hosts)["copied"] == 3
    assert table(empty) == {"T1@G1": {"0": 100, "1": 98}, "%RETRY%G1@G1": {"0": 9}}
    assert outcome("import", empty, hosts)["kept"] == 3


@pytest.mark.java
def test_the_higher_one_stays_unless_told_otherwise(
    servers: ZooKeeperEnsemble, entries: KazooClient, path: Path
) -> None:
    entries.create(entry("T1", "G1", 0), b"4711-5", makepath=True)
    entries.create(entry("T1", "G1", 1), b"4711-500", makepath=True)
    said = run("import", path, servers.hosts)
    assert said.stdout == (
        f"1 offsets copied to the directory (broker {NUMBER}), 1 are as far or further there\n"
    )
    assert table(path)["T1@G1"] == {"0": 100, "1": 500}
    assert outcome("import", path, servers.hosts, "--overwrite")["copied"] == 1
    assert table(path)["T1@G1"] == {"0": 5, "1": 500}
    # The same entries under the number that TubeMQ gave the broker.
    entries.create("/tubemq/consumers-v3/G1/offsets/T1/2130706433-0", b"4711-700")
    assert run("import", path, servers.hosts, "--broker-id", 2130706433).exit_code == 0
    assert table(path)["T1@G1"] == {"0": 700, "1": 500}


def test_a_directory_in_use_or_not_stopped_cleanly_is_not_imported_into(tmp_path: Path) -> None:
    nobody = "127.0.0.1:1"  # refused before anybody is dialled
    store = MessageStore.open(tmp_path, SMALL)
    assert "in use" in refused(run("import", tmp_path, nobody))
    store.close()
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config/sideTables.log").write_bytes(b"x")
    assert "not stopped cleanly" in refused(run("import", tmp_path, nobody))


def test_nothing_to_export_nobody_who_answers(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.group_offsets.CONNECT_TIMEOUT_MS", 300)
    with refusing_address() as nobody:
        assert "consumerOffset.json" in refused(run("export", tmp_path, nobody))
        assert nobody in refused(run("export", path, nobody))
    assert "host:port" in refused(run("export", path, "nowhere"))


def test_a_broker_that_reaches_no_zookeeper_ends_with_1(tmp_path: Path) -> None:
    impatient = "import penstock.broker.zookeeper_offsets as offsets\noffsets.CONNECT_TIMEOUT_MS = 300"
    with refusing_address() as nobody:
        arguments = ("--port", 0, "--data", tmp_path, "--set", f"broker.zookeeper_offsets={nobody}")
        assert nobody in failed_start(impatient, "broker", *arguments)
