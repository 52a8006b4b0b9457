"""A program with one transaction that kills itself with SIGKILL at a given step of it.

    python -m tests.fault.transaction_program NAMESERVER FILE STEP

Its work is to make the file. Steps: `entered` (the half message is stored), `worked` (the file is there), `left` (the
transaction has ended), `none`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import penstock


def main(name_server: str, file: str, step: str) -> None:
    def reached(place: str) -> None:
        if step == place:
            os.kill(os.getpid(), signal.SIGKILL)

    with penstock.Producer(name_server, "shops") as producer:
        with producer.transaction("orders", file.encode()):
            reached("entered")
            Path(file).touch()
            reached("worked")
        reached("left")


if __name__ == "__main__":
    main(*sys.argv[1:])
