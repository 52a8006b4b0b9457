"""`penstock up` as a process of its own, on free ports, as an installed command starts it."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class NodeProcess:
    """Where it answers; and, once it has ended, what it said on standard error."""

    address: str
    said: str = ""


@contextmanager
def node_process(penstock: Path, folder: Path, environment: Mapping[str, str]) -> Iterator[NodeProcess]:
    """It ends with the block, and must end well."""
    process = subprocess.Popen(
        [penstock, "up", "--json", "--port", "0", "--nameserver-port", "0"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        node = NodeProcess(json.loads(line)["nameserver"])
        yield node
    finally:
        process.send_signal(signal.SIGTERM)
        said = process.communicate()[1]
    node.said = said
    assert process.returncode == 0, said
