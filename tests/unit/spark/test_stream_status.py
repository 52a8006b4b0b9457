"""How far a pipeline is, out of checkpoints as Spark writes them; no Spark."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import penstock
from penstock.client.loop_thread import LoopThread
from penstock.errors import ConnectError, OptionError, PenstockError
from penstock.spark.pipelines import stream_status
from penstock.spark.pipelines.stream_run import only_run, running_pid
from penstock.spark.pipelines.stream_status import pipeline_status
from penstock.testing.embedded import BROKER, EmbeddedBroker

FILE = """\
nameserver = "127.0.0.1:1"
checkpoint = "state"
[sources.orders]
topic = "orders"
[sinks.out]
from = "orders"
topic = "copies"
[sinks.files]
from = "orders"
path = "files"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "p.toml"
    path.write_text(FILE)
    return path


def write_batch(folder: Path, batch: int, *offsets: dict[str, int] | str, done: bool = True) -> None:
    about = json.dumps({"batchWatermarkMs": 5, "batchTimestampMs": 1_700_000_000_000 + batch, "conf": {}})
    lines = ["v1", about, *(item if isinstance(item, str) else json.dumps(item) for item in offsets)]
    (folder / "offsets").mkdir(parents=True, exist_ok=True)
    (folder / "commits").mkdir(exist_ok=True)
    (folder / "offsets" / str(batch)).write_text("\n".join(lines))
    (folder / "offsets" / f".{batch}.crc").write_bytes(b"crc")
    if done:
        (folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def test_the_last_batch_with_both_files_is_the_one_that_is_done(file: Path) -> None:
    state = file.parent / "state" / "out"
    write_batch(state, 8, {"orders/a/0": 3})
    write_batch(state, 9, {"orders/a/0": 10, "orders/a/1": 20})
    write_batch(state, 10, {"orders/a/0": 99, "orders/a/1": 99}, done=False)
    status = pipeline_status(file, ends=lambda queues: dict.fromkeys(queues, 25))
    out, files = status.sinks
    assert (out.batch, out.is_batch_open, out.lag) == (9, True, 20)
    assert out.offsets == {"orders/a/0": 10, "orders/a/1": 20}
    assert (out.batch_time_ms, out.watermark_ms) == (1_700_000_000_009, 5)
    assert (files.batch, files.is_batch_open, files.lag) == (-1, False, None)
    assert status.pid is None
    assert status.trouble == ""
    assert json.dumps([item.json() for item in status.sinks])


def test_sources_of_other_kinds_and_empty_ones_are_passed_over(file: Path) -> None:
    write_batch(
        file.parent / "state" / "out", 0, "-", '{"logOffset":3}', "17", {"orders/a/0": 4}, {"orders/a/0": 2}
    )
    status = pipeline_status(file, ends=lambda queues: dict.fromkeys(queues, 5))
    assert status.sinks[0].offsets == {"orders/a/0": 2}
    assert status.sinks[0].lag == 3


def test_where_a_first_batch_began_is_no_queue(file: Path) -> None:
    write_batch(file.parent / "state" / "out", 0, {"^orders/a/0": 1, "orders/a/0": 4})
    status = pipeline_status(file, ends=lambda queues: dict.fromkeys(queues, 5))
    assert status.sinks[0].offsets == {"orders/a/0": 4}
    assert status.sinks[0].lag == 1


def test_a_cluster_that_does_not_answer_leaves_the_lag_unknown(file: Path) -> None:
    write_batch(file.parent / "state" / "out", 0, {"orders/a/0": 4})

    def silent(queues: object) -> dict[str, int]:
        raise ConnectError("no name server answers", "start one")

    status = pipeline_status(file, ends=silent)
    assert status.sinks[0].lag is None
    assert status.trouble == "no name server answers; start one"


@contextmanager
def cluster(broker_name: str, *topics: str) -> Iterator[str]:
    """The address of a cluster whose topics have three messages."""
    server = EmbeddedBroker(broker=replace(BROKER, broker_name=broker_name))
    thread = LoopThread("penstock-cluster")
    try:
        thread.run(server.start())
        try:
            with penstock.Admin(server.address) as admin, penstock.Producer(server.address) as producer:
                for topic in topics:
                    admin.create_topic(topic, queues=1)
                    for number in range(3):
                        producer.send(topic, b"%d" % number)
            yield server.address
        finally:
            thread.run(server.stop())
    finally:
        thread.stop()


def test_each_source_is_asked_for_at_its_own_name_server(tmp_path: Path) -> None:
    """One topic is in both clusters, at brokers of different names; nothing listens at the file's own address."""
    with cluster("a", "orders", "both") as one, cluster("b", "refunds", "both") as other:
        path = tmp_path / "p.toml"
        path.write_text(
            'nameserver = "127.0.0.1:1"\ncheckpoint = "state"\n'
            f'[sources.orders]\ntopic = ["orders", "both"]\nnameserver = "{one}"\n'
            f'[sources.others]\ntopic_pattern = "ref.*|both"\nnameserver = "{other}"\n'
            '[sinks.out]\nfrom = "orders"\npath = "out"\n'
        )
        offsets = {"orders/a/0": 1, "refunds/b/0": 2, "both/a/0": 0, "both/b/0": 3}
        write_batch(tmp_path / "state" / "out", 0, offsets)
        status = pipeline_status(path)
        assert status.trouble == ""
        assert status.sinks[0].lag == 2 + 1 + 3 + 0


def test_a_queue_that_two_clusters_have_is_not_guessed_at(tmp_path: Path) -> None:
    with cluster("a", "orders") as one, cluster("a", "orders") as other:
        path = tmp_path / "p.toml"
        path.write_text(
            f'checkpoint = "state"\n[sources.here]\ntopic = "orders"\nnameserver = "{one}"\n'
            f'[sources.there]\ntopic = "orders"\nnameserver = "{other}"\n'
            '[sinks.out]\nfrom = "here"\npath = "out"\n'
        )
        write_batch(tmp_path / "state" / "out", 0, {"orders/a/0": 1})
        status = pipeline_status(path)
        assert status.sinks[0].lag is None
        assert status.trouble.startswith("several clusters have a topic orders at a broker a")


def test_without_a_name_server_the_default_is_asked(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stream_status.DEFAULT_NAME_SERVER == "127.0.0.1:9876"
    file.write_text(FILE.replace('nameserver = "127.0.0.1:1"\n', ""))
    write_batch(file.parent / "state" / "out", 0, {"orders/a/0": 1})
    with cluster("a", "orders") as address:
        monkeypatch.setattr(stream_status, "DEFAULT_NAME_SERVER", address)
        assert pipeline_status(file).sinks[0].lag == 2


def test_a_checkpoint_elsewhere_cannot_be_read(file: Path) -> None:
    with pytest.raises(OptionError, match="is not a directory of this machine"):
        pipeline_status(file, checkpoint="hdfs://host/state")


def test_a_pipeline_runs_once_at_a_time_and_the_other_is_named(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    code = (
        "import sys\nfrom penstock.spark.pipelines.stream_run import only_run\n"
        "with only_run(sys.argv[1]):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    held = subprocess.Popen(
        [sys.executable, "-c", code, state], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert held.stdout.readline() == b"held\n"
        assert running_pid(state) == held.pid
        with (
            pytest.raises(PenstockError, match=f"running already, as process {held.pid}; stop it first"),
            only_run(state),
        ):
            pass
    finally:
        held.communicate(timeout=30)
    assert running_pid(state) is None


def test_what_a_killed_run_left_behind_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "running").write_text(f"{os.getpid()}\n")
    assert running_pid(str(tmp_path)) is None
    with only_run(str(tmp_path)):
        assert running_pid(str(tmp_path)) == os.getpid()
    assert not (tmp_path / "running").exists()


def test_an_address_is_not_locked() -> None:
    with only_run("hdfs://host/state"):
        pass
