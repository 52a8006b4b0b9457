"""Spark drivers as processes of their own: what lets them start quickly, and which processes belong to one."""

import contextlib
import os
import shlex
from pathlib import Path
from typing import NamedTuple

from penstock.spark.java import existing_archive
from tests.effort import LONG

# For the few rows of a test, compiling expressions is most of the work; and Spark's usual way to write a checkpoint
# to a local disk starts a process (chmod, readlink) for nearly every file. The long run has both as they are.
FEW_ROWS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing"
    ".FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
# A short life: the quick compiler, the plain collector, little memory.
QUICK_SETTINGS = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.stateStore.maintenanceInterval": "600s",
}
if not LONG:
    QUICK_SETTINGS |= FEW_ROWS


def quick_java() -> str:
    """JVM options of executors and of Spark's own servers, which get nothing from `penstock.spark.session`."""
    archive = existing_archive()
    shared = f" -XX:SharedArchiveFile={archive} -Xlog:cds=off -Xlog:cds+dynamic=off" if archive else ""
    return QUICK_SETTINGS["spark.driver.extraJavaOptions"] + shared


def quick_start() -> list[str]:
    """The same as options of a command."""
    return [part for pair in QUICK_SETTINGS.items() for part in ("--conf", "=".join(pair))]


def quick_submit() -> str:
    """PYSPARK_SUBMIT_ARGS for a command with JVM settings of its own, which those of the test would replace."""
    settings = [f"{name}={value}" for name, value in QUICK_SETTINGS.items() if name.startswith("spark.sql.")]
    return shlex.join([*(part for text in settings for part in ("--conf", text)), "pyspark-shell"])


class Process(NamedTuple):
    """A process that runs, by its id and command line."""

    pid: int
    line: str


def processes_of(group: int) -> list[Process]:
    """The processes of a group, without those that are only waited for."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, its_group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                line = (folder / "cmdline").read_text().replace("\0", " ")
                found.append(Process(int(folder.name), line))
    return found


def listening_sockets(pid: int) -> set[str]:
    """The TCP sockets on which a process accepts connections, by their inodes."""
    listening, owned = set(), set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                listening.add(words[9])
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                owned.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
    return listening & owned
