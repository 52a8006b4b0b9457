"""Who a broker is in its set: RocketMQ's files, and how often it was started."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.set_identity import (
    APPLICATION,
    BOOT_ID,
    IDENTITY,
    INCARNATION,
    Application,
    SetIdentity,
    Start,
)
from penstock.errors import OptionError, StoreFormatError
from penstock.runtime import SystemDisk
from penstock.testing import FaultyDisk


class Machine(SystemDisk):
    """A disk on a machine that can be started anew."""

    def __init__(self) -> None:
        self.boot = b"11111111\n"

    def read(self, path: Path) -> bytes:
        if path == BOOT_ID:
            if not self.boot:
                raise FileNotFoundError(path)
            return self.boot
        return super().read(path)


def identity(
    folder: Path, cluster: str = "c", name: str = "set-a", disk: SystemDisk | None = None
) -> SetIdentity:
    return SetIdentity(disk or Machine(), folder, cluster, name)


def test_an_id_is_written_down_before_it_is_applied_for_and_kept_when_it_is_given(tmp_path: Path) -> None:
    mine = identity(tmp_path)
    assert (mine.broker_id(), mine.application()) == (None, None)
    mine.apply_for(Application(3, "10.0.0.1:10911;1700000000000"))
    assert (tmp_path / APPLICATION).read_bytes() == b"c#set-a#3#10.0.0.1:10911;1700000000000"
    assert identity(tmp_path).application() == Application(3, "10.0.0.1:10911;1700000000000")
    mine.granted(3)
    assert (tmp_path / IDENTITY).read_bytes() == b"c#set-a#3"
    assert not (tmp_path / APPLICATION).exists()
    assert identity(tmp_path).broker_id() == 3


def test_an_id_that_somebody_else_got_is_given_up(tmp_path: Path) -> None:
    mine = identity(tmp_path)
    mine.give_up()
    mine.apply_for(Application(3, "me"))
    mine.give_up()
    assert identity(tmp_path).application() is None


@pytest.mark.parametrize(("cluster", "name"), [("other", "set-a"), ("c", "set-b")])
def test_a_directory_belongs_to_one_set(tmp_path: Path, cluster: str, name: str) -> None:
    identity(tmp_path).granted(3)
    with pytest.raises(OptionError, match="belongs to broker set-a of cluster c"):
        identity(tmp_path, cluster, name).broker_id()


@pytest.mark.invariant("I12")
@pytest.mark.parametrize(
    "text", [b"", b"c#set-a", b"c#set-a#x", b"c#set-a#-1", b"c#set-a#99999999999999999999"]
)
def test_a_file_that_cannot_be_read_is_not_guessed_at(tmp_path: Path, text: bytes) -> None:
    (tmp_path / IDENTITY).write_bytes(text)
    with pytest.raises(StoreFormatError):
        identity(tmp_path).broker_id()


def test_starts_are_counted_and_the_machine_is_recognised(tmp_path: Path) -> None:
    machine = Machine()
    assert identity(tmp_path, disk=machine).start() == Start(1, False)
    assert identity(tmp_path, disk=machine).start() == Start(2, True)
    machine.boot = b"22222222\n"
    assert identity(tmp_path, disk=machine).start() == Start(3, False)
    assert identity(tmp_path, disk=machine).start() == Start(4, True)


def test_where_the_machine_says_nothing_every_start_may_have_lost_something(tmp_path: Path) -> None:
    machine = Machine()
    machine.boot = b""
    assert identity(tmp_path, disk=machine).start() == Start(1, False)
    assert identity(tmp_path, disk=machine).start() == Start(2, False)


@pytest.mark.invariant("I12")
def test_a_count_that_cannot_be_read_is_never_begun_anew(tmp_path: Path) -> None:
    (tmp_path / INCARNATION).write_bytes(b"many\n")
    with pytest.raises(StoreFormatError, match="cannot be read"):
        identity(tmp_path).start()


@pytest.mark.fault("F6")
def test_what_was_said_of_a_start_or_an_id_survives_the_power(tmp_path: Path) -> None:
    """Whoever was told of an incarnation or an id counts on never seeing an older one."""
    disk = FaultyDisk(tmp_path)
    mine = SetIdentity(disk, tmp_path, "c", "set-a")
    mine.apply_for(Application(2, "me"))
    mine.granted(2)
    started = mine.start()
    disk.crash()
    again = SetIdentity(FaultyDisk(tmp_path), tmp_path, "c", "set-a")
    assert (again.broker_id(), again.application()) == (2, None)
    assert again.start().incarnation == started.incarnation + 1
