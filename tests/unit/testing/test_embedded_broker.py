"""The broker for everybody's tests: real, quick, and gone without a trace."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest

import penstock.testing
from penstock.client.admin import Admin
from penstock.client.async_producer import AsyncProducer
from penstock.client.consumer import Consumer
from penstock.client.producer import Producer
from penstock.errors import PenstockError
from penstock.testing.scratch_disk import ScratchDisk, scratch_parent
from tests.waiting import PATIENT_SENDS

ROOT = Path(__file__).resolve().parents[3]
READY_LIMIT_S = 0.050
TRIES = 20


def test_messages_go_through_it() -> None:
    with penstock.testing.broker() as address:
        with Producer(address, **PATIENT_SENDS) as producer:
            sent = [producer.send("T", b"m%d" % number, tag="t", keys="k").msg_id for number in range(50)]
        with Consumer(address, "g", start_from="first") as consumer:
            consumer.subscribe("T")
            received: list[str] = []
            while len(received) < 50:
                received += [message.msg_id for message in consumer.poll(64, 60)]
            consumer.commit()
        assert sorted(received) == sorted(sent)
        with Admin(address) as admin:
            assert len(admin.query_messages("T", "k", limit=64)) == 50


def test_it_is_ready_within_50_ms() -> None:
    """By the clock or, on a busy machine, by the processor time it took; the best of some tries. Imports come
    before."""
    taken = []
    for _ in range(TRIES):
        started, used = time.perf_counter(), time.process_time()
        with penstock.testing.broker():
            taken.append((time.perf_counter() - started, time.process_time() - used))
        if min(taken[-1]) < READY_LIMIT_S:
            return
    raise AssertionError([f"{wall * 1000:.1f} ms, {cpu * 1000:.1f} ms of it busy" for wall, cpu in taken])


def test_nothing_stays_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Threads and descriptors are also checked around every test; here files and the port."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    threads = set(threading.enumerate())
    with penstock.testing.broker() as address:
        with Producer(address) as producer:
            producer.send("T", b"x")
        assert list(tmp_path.iterdir()) != []
    assert list(tmp_path.iterdir()) == []
    assert set(threading.enumerate()) <= threads
    host, _, port = address.rpartition(":")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, int(port)), 1).close()


def fail_in_the_block() -> None:
    with penstock.testing.broker() as address, Producer(address) as producer:
        producer.send("T", b"x")
        raise ZeroDivisionError


def test_nothing_stays_behind_when_the_block_fails() -> None:
    threads = set(threading.enumerate())
    with pytest.raises(ZeroDivisionError):
        fail_in_the_block()
    assert set(threading.enumerate()) <= threads


def test_nothing_stays_behind_when_the_start_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    threads = set(threading.enumerate())
    with pytest.raises((PenstockError, OSError)), penstock.testing.broker(tmp_path / "file"):
        raise AssertionError("it must not start")
    assert set(threading.enumerate()) <= threads


def test_clients_that_forgot_to_close_do_not_hold_it_up() -> None:
    started = time.monotonic()
    with penstock.testing.broker() as address:
        consumer = Consumer(address, "g").start()
        consumer.subscribe("T")
    assert time.monotonic() - started < 30
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        consumer.close(timeout_s=0.1)


def test_two_at_once_know_nothing_of_each_other() -> None:
    with penstock.testing.broker() as one, penstock.testing.broker() as two:
        assert one != two
        with Producer(one) as producer:
            producer.send("only-in-one", b"x")
        with Admin(one) as admin_of_one, Admin(two) as admin_of_two:
            assert admin_of_one.list_topics() == ["only-in-one"]
            assert admin_of_two.list_topics() == []


def test_options_of_broker_and_store() -> None:
    strict = penstock.testing.broker(auto_create_topics=False, store={"seal_records": True})
    with strict as address, Producer(address, retries=0) as producer, pytest.raises(PenstockError):
        producer.send("T", b"x")
    with penstock.testing.broker(broker_name="named", default_topic_queues=2) as address:
        with Producer(address) as producer:
            result = producer.send("T", b"x")
        with Admin(address) as admin:
            assert len(admin.describe_topic("T").queues) == 2
        assert result.queue.broker_name == "named"


def test_a_directory_of_ones_own_is_kept(tmp_path: Path) -> None:
    for expected in (1, 2):
        with penstock.testing.broker(tmp_path / "kept") as address:
            with Producer(address, **PATIENT_SENDS) as producer:
                producer.send("T", b"x")
            with Admin(address) as admin:
                assert admin.describe_topic("T").messages == expected


def test_the_async_form_runs_in_the_callers_loop() -> None:
    async def session() -> int:
        threads = threading.active_count()
        async with penstock.testing.async_broker() as address:
            async with AsyncProducer(address) as producer:
                result = await producer.send("T", b"x")
            assert result.is_ok
            return threading.active_count() - threads

    before = {thread.name for thread in threading.enumerate()}
    asyncio.run(session())
    assert {thread.name for thread in threading.enumerate()} <= before


def test_scratch_directories_are_in_memory_if_there_is_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    assert scratch_parent(tmp_path / "absent") is None
    assert scratch_parent(tmp_path) in (tmp_path, None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert scratch_parent(tmp_path) is None


def test_a_scratch_file_is_as_long_as_asked_for_and_costs_nothing(tmp_path: Path) -> None:
    file = ScratchDisk().open(tmp_path / "f", create=True)
    try:
        file.allocate(1 << 30)
        assert file.size() == 1 << 30
        file.allocate(10)
        assert file.size() == 1 << 30
        file.sync()
    finally:
        file.close()
    assert os.stat(tmp_path / "f").st_blocks < 100


# -- the pytest plugin -------------------------------------------------------------------------------------------

USER_TESTS = """
import penstock
from penstock.client.producer import Producer

SEEN = []

def test_one(penstock_broker):
    with Producer(penstock_broker) as producer:
        assert producer.send("T", b"x").queue_offset == 0
    SEEN.append(penstock_broker)

def test_two(penstock_broker, penstock_broker_session):
    with Producer(penstock_broker) as producer:
        assert producer.send("T", b"x").queue_offset == 0
    assert penstock_broker not in SEEN
    SEEN.append(penstock_broker_session)

def test_three(penstock_broker_session):
    assert penstock_broker_session == SEEN[-1]
    with Producer(penstock_broker_session) as producer:
        assert producer.send("T", b"x").is_ok
"""


def test_the_fixtures_are_there_where_the_package_is_installed(tmp_path: Path) -> None:
    """Installed means: an entry point that pytest finds. This one stands for the package's own."""
    information = tmp_path / "site" / "penstock_probe-0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: penstock-probe\nVersion: 0\n")
    (information / "entry_points.txt").write_text("[pytest11]\npenstock = penstock.testing.plugin\n")
    (tmp_path / "test_user.py").write_text(USER_TESTS)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_user.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path / "site"), str(ROOT)))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_the_plugin_costs_little_where_nobody_uses_it() -> None:
    code = "import sys, penstock.testing.plugin; print(*sorted(m for m in sys.modules if m.startswith('penstock')))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert set(done.stdout.split()) <= {
        "penstock",
        "penstock.errors",
        "penstock.testing",
        "penstock.testing.plugin",
    }


def test_the_plugin_is_registered_with_the_package() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"penstock": "penstock.testing.plugin"}


@pytest.mark.parametrize("name", penstock.testing.__all__)
def test_every_name_of_the_package_can_be_loaded(name: str) -> None:
    assert getattr(penstock.testing, name) is not None
    assert name in dir(penstock.testing)


def test_other_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        penstock.testing.nothing  # noqa: B018
