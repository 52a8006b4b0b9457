"""A store on a tmpfs without a free page: a process that starts there reports it or works; SIGBUS does not end it.

There, touching a hole of a file through its map needs a page, and without one the kernel kills the process. Queue and
index files are mostly holes. A real file system of its own, 24 MiB; mounting it needs root.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Admin, Producer
from tests.support.forked_process import ROOT

SETTINGS = {
    "store.segment_size_bytes": "1M",
    "store.max_message_size_bytes": "512K",
    "store.index_slots": "100000",
    "store.index_entries": "200000",
    **{
        f"store.disk_{name}_percent": "100"
        for name in ("max_used", "clean_forcibly", "refuse_writes", "warning")
    },
}
PAGE = 4096
WAIT_S = 60


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mount.returncode:
        pytest.skip(f"NO TMPFS CAN BE MOUNTED HERE, so a full one is not tested: {mount.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class Server:
    """`penstock up` on a data directory."""

    def __init__(self, data: Path) -> None:
        line = [sys.executable, "-m", "penstock.cli.main", "up", "--json", "--data", str(data)]
        line += ["--port", "0", "--nameserver-port", "0"]
        for name, value in SETTINGS.items():
            line += ["--set", f"{name}={value}"]
        self._process = subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        self.nameserver = json.loads(ready)["nameserver"] if ready else ""

    def end(self) -> tuple[int, str]:
        """Exit code and what it complained of; stops it first if it runs."""
        if self.nameserver:
            self._process.send_signal(signal.SIGTERM)
        _, complaints = self._process.communicate(timeout=WAIT_S)
        return self._process.returncode, complaints


def fill(folder: Path, free_pages: int) -> None:
    """Leave so many pages of the file system."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(PAGE))
        except OSError:
            pass
    os.truncate(filler, filler.stat().st_size // PAGE * PAGE - free_pages * PAGE)


@pytest.mark.fault("F4")
def test_starting_on_a_full_tmpfs_is_an_error_and_no_crash(tmpfs: Path) -> None:
    data, saved = tmpfs / "data", tmpfs.parent / "saved"
    server = Server(data)
    with Producer(server.nameserver) as producer:
        for number in range(300):
            producer.send("orders", b"%d" % number, keys=f"k{number}")
    assert server.end()[0] == 0
    subprocess.run(["cp", "-a", "--sparse=always", str(data), str(saved)], check=True)
    refused = served = 0
    for free_pages in (0, 1, 4):
        for old in tmpfs.iterdir():
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        subprocess.run(["cp", "-a", "--sparse=always", str(saved), str(data)], check=True)
        fill(tmpfs, free_pages)
        server = Server(data)
        if server.nameserver:
            served += 1
            read_by_key(server.nameserver)
        code, complaints = server.end()
        assert code != -signal.SIGBUS, f"killed with {free_pages} pages free"
        if not server.nameserver:
            refused += 1
            assert code == 2
            assert "no space left to open the store" in complaints
            assert "free space on its disk" in complaints
    assert refused
    assert served


def read_by_key(nameserver: str) -> None:
    """Keys that are there and many that are not: their slots are holes."""
    with Admin(nameserver) as admin:
        assert admin.query_messages("orders", "k7", limit=1)
        for number in range(1_000, 1_040):
            assert not admin.query_messages("orders", f"k{number}", limit=1)
