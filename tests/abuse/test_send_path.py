"""Mutated sends through the compiled way: the same as in plain Python, and the same as the ordinary way."""

from __future__ import annotations

import asyncio
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.protocol.command import Command
from penstock.runtime import Runtime, SeededEntropy
from penstock.store import FlushMode
from tests.abuse.mutation import Expected, Mutator, expected
from tests.abuse.observed import ROOT
from tests.abuse.send_path_run import SENDS
from tests.effort import by_length, first_seed
from tests.support.send_paths import Counting, Peer, log_bytes, start

SEED = first_seed(20261116)
CHUNKS = by_length(1_500, 20_000)
FRAMES = by_length(1_000, 30_000)
RUN = 50
# Covers times and addresses, which differ.
SEAL = re.compile(rb"__CRC32#\x01[0-9]+\x02")


@pytest.mark.abuse("A4")
@pytest.mark.abuse("A5")
@pytest.mark.abuse("A26")
@pytest.mark.long
def test_both_forms_do_the_same_with_mutated_sends() -> None:
    """Two processes, one with the compiled modules and one without; each chunk holds two frames on average."""
    command = [sys.executable, "-m", "tests.abuse.send_path_run", str(SEED), str(CHUNKS)]
    processes = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PENSTOCK_PURE": pure},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for pure in ("0", "1")
    ]
    (compiled, form), (pure, other_form) = [process.communicate(timeout=280) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], (form[-2_000:], other_form[-2_000:])
    assert (form, other_form) == ("form compiled\n", "form pure\n")
    lines, others = compiled.splitlines(), pure.splitlines()
    assert len(lines) == len(others) == CHUNKS + 1
    for line, other in zip(lines, others, strict=True):
        assert line == other
    assert int(lines[-1].split()[1]) > CHUNKS * 100, "next to nothing was stored"


def comparable(answers: list[Command]) -> list[tuple[object, ...]]:
    """Answers without what must differ: the address inside ids, and unique keys that a broker made."""
    rows = []
    for answer in sorted(answers, key=lambda one: one.opaque):
        named = dict(answer.fields)
        if "msgId" in named:
            named["msgId"] = ",".join(one[16:] for one in named["msgId"].split(","))
        if named.get("transactionId", "").startswith("7F000001"):
            named["transactionId"] = "made"
        rows.append((answer.opaque, answer.code, answer.remark, answer.binary, named, answer.body))
    return rows


def runs(count: int) -> list[tuple[bytes, int]]:
    """Frames that leave a connection usable, several at a time, and how many answers they get."""
    mutator, made, numbers = Mutator(SENDS, SEED), [], iter(range(count))
    while True:
        data, answers = bytearray(), 0
        for number in numbers:
            frame = mutator.frame(number)
            what, owed = expected(frame)
            if what is Expected.HANDLED and all(opaque == number for _, opaque in owed):
                data += frame
                answers += len(owed)
            if number % RUN == RUN - 1:
                break
        else:
            return made
        made.append((bytes(data), answers))


@pytest.mark.abuse("A3")
@pytest.mark.abuse("A4")
@pytest.mark.abuse("A5")
@pytest.mark.abuse("A18")
@pytest.mark.long
def test_both_ways_do_the_same_with_mutated_sends(tmp_path: Path) -> None:
    """Whatever the compiled way takes, the ordinary way would have taken, with the same answer and record."""

    async def main() -> None:
        lucks = [Runtime(entropy=SeededEntropy(7)) for _ in range(2)]
        quick = await start(tmp_path / "fast", fast=True, mode=FlushMode.ASYNC, runtime=lucks[0])
        plain = await start(tmp_path / "plain", fast=False, mode=FlushMode.ASYNC, runtime=lucks[1])
        for broker in (quick, plain):  # when delayed messages are due is nobody's business here
            assert broker.delay is not None
            broker.delay.pause()
        peers = [await Peer.connect(quick), await Peer.connect(plain)]
        luck, count = random.Random(SEED), 0
        for chunk, owed in runs(FRAMES):
            cut = luck.randrange(len(chunk) + 1)
            for peer in peers:
                peer.writer.write(chunk[:cut])
                await asyncio.sleep(0)
                peer.writer.write(chunk[cut:])
            async with asyncio.timeout(90):
                one, other = [comparable(await peer.answers(owed)) for peer in peers]
            for row, same in zip(one, other, strict=True):
                assert row == same
            count += owed
        first, second = [SEAL.sub(b"", log_bytes(broker)) for broker in (quick, plain)]
        assert first == second
        path = quick.fast_path.path
        assert isinstance(path, Counting)
        assert path.taken > FRAMES * 16
        assert count > FRAMES * 3 // 4
        for peer in peers:
            peer.writer.close()
        await quick.stop()
        await plain.stop()

    asyncio.run(main())
