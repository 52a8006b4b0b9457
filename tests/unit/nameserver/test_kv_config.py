"""The KV config: saved before it is visible, read back, limited."""

import asyncio
import errno
import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import CodecError, DiskFullError, RequestError, StoreError
from penstock.nameserver import NameServer, NameServerOptions
from penstock.nameserver.kv_config import KvConfig
from penstock.runtime import Disk, Runtime, SystemDisk
from penstock.testing import FaultyDisk
from tests.support.nameserver_wire import name_server, peer
from tests.waiting import DEADLINE_S, turns


def config(path: Path | None, disk: Disk | None = None, **options: Any) -> KvConfig:
    kv = KvConfig(NameServerOptions(kv_config_path=str(path or ""), **options), disk or SystemDisk())
    kv.load()
    return kv


def test_what_was_put_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "kvConfig.json"

    async def run() -> None:
        kv = config(path)
        await kv.put("n", "k", "v1")
        await kv.put("n", "k", "v2")
        await kv.put("n", "schlüssel", "wert\nmit zeile")
        await kv.put("m", "k", "")
        await kv.delete("n", "gone")
        await kv.delete("nowhere", "gone")

    asyncio.run(run())
    again = config(path)
    assert again.namespace("n") == {"k": "v2", "schlüssel": "wert\nmit zeile"}
    assert again.get("m", "k") == ""
    assert (again.get("m", "x"), again.get("x", "k"), again.namespace("x")) == (None, None, None)
    assert set(json.loads(path.read_text("ascii"))) == {"configTable"}


def test_the_file_of_a_java_name_server_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text('{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"a:4;b:2",},n:{k:"v"}}}', "utf-8")
    kv = config(path)
    assert kv.namespace("ORDER_TOPIC_CONFIG") == {"T": "a:4;b:2"}
    assert kv.get("n", "k") == "v"
    path.write_text("{}", "utf-8")
    assert config(path).namespace("n") is None


def test_a_backup_takes_over_and_damage_is_not_started_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "kvConfig.json"

    async def run() -> None:
        kv = config(path)
        await kv.put("n", "k", "old")
        await kv.put("n", "k", "new")
        path.write_bytes(b"{")
        with caplog.at_level(logging.WARNING):
            assert config(path).get("n", "k") == "old"
        assert "kvConfig.json.bak" in caplog.text
        path.with_name("kvConfig.json.bak").write_bytes(b'{"configTable":{"n":7}}')
        server = NameServer(NameServerOptions(port=0, kv_config_path=str(path)), runtime=Runtime.system())
        with pytest.raises(CodecError, match="restore"):
            await server.start()
        await server.stop()

    asyncio.run(run())


@pytest.mark.fault("F4")
@pytest.mark.fault("F8")
@pytest.mark.parametrize(("operation", "error"), [("pwrite", errno.ENOSPC), ("sync", errno.EIO)])
def test_what_cannot_be_saved_is_not_there(tmp_path: Path, operation: str, error: int) -> None:
    async def run() -> None:
        disk = FaultyDisk(tmp_path)
        kv = config(tmp_path / "kvConfig.json", disk)
        await kv.put("n", "k", "v1")
        disk.fail_next(operation, error)
        with pytest.raises(DiskFullError if error == errno.ENOSPC else StoreError):
            await kv.put("n", "k", "v2")
        assert kv.get("n", "k") == "v1"
        disk.fail_next(operation, error)
        with pytest.raises(StoreError):
            await kv.delete("n", "k")
        assert kv.get("n", "k") == "v1"
        await kv.put("n", "k", "v3")
        assert config(tmp_path / "kvConfig.json").get("n", "k") == "v3"

    asyncio.run(run())


def test_a_failed_save_is_answered_as_one(tmp_path: Path) -> None:
    async def run() -> None:
        disk = FaultyDisk(tmp_path)
        runtime = Runtime(disk=disk)
        path = str(tmp_path / "kvConfig.json")
        async with name_server(runtime, kv_config_path=path) as server, peer(server) as admin:
            disk.fail_next("pwrite", errno.ENOSPC)
            answer = await admin.ask(100, namespace="n", key="k", value="v")
            assert answer.code == 14
            assert (await admin.ask(101, namespace="n", key="k")).code == 22
            assert (await admin.ask(100, namespace="n", key="k", value="v")).code == 0
        async with name_server(kv_config_path=path) as server, peer(server) as admin:
            assert (await admin.ask(101, namespace="n", key="k")).fields == {"value": "v"}

    asyncio.run(run())


@pytest.mark.fault("F9")
def test_a_slow_disk_holds_up_nobody_else(tmp_path: Path) -> None:
    async def run() -> None:
        disk = FaultyDisk(tmp_path)
        disk.sync_delay_s = 0.3
        is_answered = threading.Event()
        disk._sleep = lambda _: is_answered.wait(DEADLINE_S)
        path = str(tmp_path / "kvConfig.json")
        async with name_server(Runtime(disk=disk), kv_config_path=path) as server, peer(server) as admin:
            saving = asyncio.ensure_future(admin.ask(100, namespace="n", key="k", value="v"))
            assert (await admin.ask(101, namespace="n", key="k")).code == 22
            assert not saving.done(), "answered when it is on disk"
            is_answered.set()
            assert (await saving).code == 0

    asyncio.run(run())


def test_callers_that_go_away_leave_no_half_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        disk = FaultyDisk(tmp_path)
        disk.sync_delay_s = 0.05
        kv = config(tmp_path / "kvConfig.json", disk)
        disk.fail_next("rename", errno.EIO, after=3, times=1)
        changes = [asyncio.ensure_future(kv.put("n", f"k{number}", "v")) for number in range(4)]
        await turns()
        for change in changes[:3]:
            change.cancel()
        await asyncio.gather(*changes, return_exceptions=True)
        await kv.close()
        saved = config(tmp_path / "kvConfig.json")
        assert dict(saved.namespace("n") or {}) == dict(kv.namespace("n") or {})
        assert len(kv.namespace("n") or {}) == 3

    asyncio.run(run())
    assert "was not saved" in caplog.text


@pytest.mark.abuse("A14")
def test_limits() -> None:
    async def run() -> None:
        kv = config(None, kv_entries_max=2, kv_value_chars_max=10)
        await kv.put("n", "a", "x" * 10)
        with pytest.raises(RequestError, match="kv_value_chars_max"):
            await kv.put("n", "a", "x" * 11)
        await kv.put("m", "b", "")
        with pytest.raises(RequestError, match="kv_entries_max"):
            await kv.put("n", "c", "")
        await kv.put("m", "b", "another")
        await kv.delete("m", "b")
        await kv.put("n", "c", "")

    asyncio.run(run())


@pytest.mark.abuse("A25")
@pytest.mark.parametrize("name", ["", "a\nb", "x" * 256, "a\x00", "half \ud800"])
def test_names_are_short_and_stay_on_their_line(name: str) -> None:
    async def run() -> None:
        kv = config(None)
        for namespace, key in ((name, "k"), ("n", name)):
            with pytest.raises(RequestError) as caught:
                await kv.put(namespace, key, "v")
            assert caught.value.code == 29

    asyncio.run(run())
