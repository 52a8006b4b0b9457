"""A RocketMQ broker with segments that a test can fill, as master or as slave of somebody."""

from __future__ import annotations

import os
from pathlib import Path

from tests.interop.wire.frames import Wire
from tests.interop.wire.rocketmq_server import RocketMQ

SEGMENT = 1 << 20


class SmallRocketMQ(RocketMQ):
    """With segments that a test can fill, and settings of its own."""

    def __init__(self, directory: Path, master: str = "", **settings: object) -> None:
        directory.mkdir()
        self._master = master
        self._master_wire: Wire | None = None
        self._settings = {"mappedFileSizeCommitLog": SEGMENT, **settings}
        self.folder = directory / "store" / "commitlog"
        super().__init__(directory)

    def _write_config(self, name_port: int, broker_port: int) -> None:
        super()._write_config(name_port, broker_port)
        path = self._directory / "broker.conf"
        lines = [line for line in path.read_text().splitlines() if line.split("=")[0] not in self._settings]
        lines += [f"{key}={value}" for key, value in self._settings.items()]
        path.write_text("\n".join(lines) + "\n")

    def _is_registered(self) -> bool:
        """A slave learns its master's address with its registration; 5.3.3 forgets a configured haMasterAddress."""
        if not self._master:
            return super()._is_registered()
        if self._master_wire is None:
            self._master_wire = Wire(self.nameserver)
            registration = {
                "brokerName": "broker-a",
                "brokerAddr": "127.0.0.1:1",
                "clusterName": "DefaultCluster",
                "haServerAddr": self._master,
                "brokerId": "0",
                "compressed": "false",
                "bodyCrc32": "0",
            }
            assert self._master_wire.call(103, registration).code == 0
        with Wire(self.broker) as wire:
            wire.call(25, body=b"brokerPermission=6")
        return True

    def stop(self) -> None:
        super().stop()
        if self._master_wire is not None:
            self._master_wire.close()

    @property
    def ha_address(self) -> str:
        """The tests' own HA service listens on loopback at a port that the system chose (Loopback.java)."""
        port = int(self.broker.rpartition(":")[2])
        (found,) = listening_ports(self.broker_process.pid) - {port, port - 2}
        return f"127.0.0.1:{found}"

    def log(self, start: int, end: int) -> bytes:
        """Part of its log, as its files have it now."""
        data = b""
        for name in sorted(path.name for path in self.folder.iterdir()):
            base = int(name)
            if base < end and base + SEGMENT > start:
                content = (self.folder / name).read_bytes()
                data += content[max(0, start - base) : min(SEGMENT, end - base)]
        return data


def listening_ports(pid: int) -> set[int]:
    """The ports that a process of this machine listens on."""
    sockets = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in sockets:
                ports.add(int(local.rpartition(":")[2], 16))
    return ports
