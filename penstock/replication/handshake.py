"""Where two logs part: pure functions over epochs.

An epoch is written by one master only, so two logs that hold the same epoch from the same position on are equal up to
the end of it in the log where it ends first. That is the whole argument, and it rests on two duties of whoever keeps
epochs: an entry is durable before the first byte of its epoch is written, and an epoch that begins where an older one
began takes its place (the older one wrote nothing here; RocketMQ keeps the older one, and then holds bytes of two
masters for those of one).
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.replication.frames import POSITION_MAX, Epoch
from penstock.store.epochs import common


def epoch_at(epochs: Sequence[Epoch], position: int) -> tuple[Epoch, int] | None:
    """The epoch that wrote a position, or will, and where it ends; None if the position is older than all of them."""
    end = POSITION_MAX
    for entry in reversed(epochs):
        if entry[1] <= position:
            return entry, end
        end = entry[1]
    return None


def common_point(
    local: Sequence[Epoch], local_max: int, remote: Sequence[Epoch], remote_max: int
) -> int | None:
    """How far two logs are surely equal, None if nothing says that they share anything."""
    return common(local, local_max, remote, remote_max)
