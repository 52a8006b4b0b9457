"""Names and places of the files in a store directory; the same as RocketMQ's.

    commitlog/<20 digits>                      segments, named by the log position of their first byte
    consumequeue/<topic>/<queue>/<20 digits>   queue files, named by the byte position in the queue
    index/<17 digits>                          key index files, named by their time of creation
    checkpoint, abort, lock, config/*.json
    timerwheel, timerlog/<20 digits>, config/timercheck   timers: `timer_wheel.py`, `timer_log.py`
    prepare/                                   ours: where a segment is made before it is moved to its place
    penstock.manifest.json                     ours: how far each queue had come, to notice a lost queue file

A name that comes from outside becomes a path only after `check_topic`.
"""

from __future__ import annotations

import re
from pathlib import Path

from penstock.errors import TopicNameError

_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]+")
# RocketMQ joins group and topic of its newer retry topics with a plus sign, which no other topic may have.
_RETRY_TOPIC = re.compile(r"%RETRY%[%|a-zA-Z0-9_+-]+")
TOPIC_SIZE_MAX = 127
RETRY_TOPIC_SIZE_MAX = 255


class StorePaths:
    """Where things are in one store directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commit_log = root / "commitlog"
        self.consume_queue = root / "consumequeue"
        self.index = root / "index"
        self.config = root / "config"
        self.checkpoint = root / "checkpoint"
        self.abort = root / "abort"
        self.lock = root / "lock"
        self.timer_wheel = root / "timerwheel"
        self.timer_log = root / "timerlog"
        self.timer_checkpoint = self.config / "timercheck"
        self.prepare = root / "prepare"
        self.manifest = root / "penstock.manifest.json"

    def queue(self, topic: str, queue_id: int) -> Path:
        return self.consume_queue.joinpath(topic, str(queue_id))


def position_name(position: int) -> str:
    """Name of the file whose first byte is at `position`."""
    return f"{position:020d}"


def parse_position(name: str) -> int | None:
    """Position in a file's name, or None if it is no such name."""
    return int(name) if len(name) == 20 and name.isascii() and name.isdigit() else None


def is_topic(topic: str) -> bool:
    """Whether a name is one that RocketMQ allows for a topic."""
    limit = RETRY_TOPIC_SIZE_MAX if topic.startswith(("%RETRY%", "%DLQ%")) else TOPIC_SIZE_MAX
    return len(topic) <= limit and (_TOPIC.fullmatch(topic) or _RETRY_TOPIC.fullmatch(topic)) is not None


def check_topic(topic: str) -> None:
    """Refuse any other name, before it becomes part of a path or a route."""
    if not is_topic(topic):
        raise TopicNameError(
            f"topic name {topic[:80]!r} is not allowed",
            f"use 1 to {TOPIC_SIZE_MAX} letters, digits and the characters % | _ -",
        )
