"""Sends mutated frames at a server, many in flight, and holds it to what it owes for each.

A worker has one connection at a time. Frames that leave the connection usable go out in runs; behind each run goes
an honest question, and until its answer comes everything else that comes is an answer to the run or a request of
the server's own. A frame that has to close the connection goes last, and the close is waited for. So every frame
is one that the server really got, and a server that hangs, or does not close, or closes without cause, is found.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.protocol.command import Command, decode_frame, encode_frame
from tests.abuse.mutation import Expected, Mutator, expected

PROBE_FIRST = 0x70000000
# Frames between two honest questions, and questions on one connection.
RUN = 40
RUNS = 25
PATIENCE_S = 20.0


@dataclass(slots=True)
class Report:
    """What was sent and what came of it."""

    frames: int = 0
    owed: int = 0
    closed: int = 0
    awaited: int = 0
    connections: int = 0
    codes: Counter[int] = field(default_factory=Counter)
    # By code, the number of a frame whose answer did not come before that to a later question.
    unanswered: dict[int, int] = field(default_factory=dict)
    # Remarks that begin like an exception nobody thought of.
    surprises: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        codes = ", ".join(f"{code}: {count}" for code, count in sorted(self.codes.items()))
        return (
            f"{self.frames} frames over {self.connections} connections, {sum(self.codes.values())} answers for"
            f" {self.owed} owed, {self.closed} closed, {self.awaited} cut off; codes {codes}"
        )


class Storm:
    """Takes frames by number from one mutator; any number of workers share it."""

    def __init__(self, address: str, mutator: Mutator, probe: Command, later: frozenset[int]) -> None:
        """`later` are the codes whose answers may come when those to later requests have come."""
        host, _, port = address.rpartition(":")
        self._place = host, int(port)
        self._mutator = mutator
        self._probe = probe
        self._later = later
        self._probes = itertools.count(PROBE_FIRST)
        self.report = Report()

    async def run(self, first: int, count: int, workers: int = 3) -> None:
        """Send the frames with these numbers."""
        numbers = iter(range(first, first + count))
        await asyncio.gather(*(self._work(numbers) for _ in range(workers)))

    async def _work(self, numbers: Iterator[int]) -> None:
        while await self._connection(numbers):
            pass

    async def _connection(self, numbers: Iterator[int]) -> bool:
        """One connection until it is used up; whether there are frames left."""
        reader, writer = await asyncio.open_connection(*self._place, limit=1 << 20)
        self.report.connections += 1
        try:
            for _ in range(RUNS):
                run, owed, last = bytearray(), {}, None
                for number in itertools.islice(numbers, RUN):
                    frame = self._mutator.frame(number)
                    what, answers = expected(frame)
                    self.report.frames += 1
                    if what is not Expected.HANDLED:
                        last = what, frame, number
                        break
                    run += frame
                    owed.update((opaque, (code, number)) for code, opaque in answers)
                self.report.owed += len(owed)
                if not run and last is None:
                    return False
                await self._question(reader, writer, bytes(run), owed)
                if last is not None:
                    await self._last(reader, writer, *last)
                    return True
            return True
        finally:
            writer.close()
            try:
                await writer.wait_closed()
            except OSError:
                pass

    async def _question(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        run: bytes,
        owed: dict[int, tuple[int, int]],
    ) -> None:
        """Send a run and an honest question behind it; read until the question is answered."""
        self._probe.opaque = opaque = next(self._probes)
        writer.write(run + encode_frame(self._probe))
        async with asyncio.timeout(PATIENCE_S):
            await writer.drain()
            while True:
                head = await reader.readexactly(4)
                frame = head + await reader.readexactly(struct.unpack(">i", head)[0])
                answer = decode_frame(frame, 0, len(frame))
                if not answer.is_response:
                    continue
                if answer.opaque == opaque:
                    break
                owed.pop(answer.opaque, None)
                self._count(answer)
        for code, number in owed.values():
            if code not in self._later:
                self.report.unanswered[code] = number

    def _count(self, answer: Command) -> None:
        self.report.codes[answer.code] += 1
        word = (answer.remark or "").split(":", 1)[0]
        if answer.code == 1 and word.endswith(("Error", "Exception")):
            self.report.surprises[(answer.remark or "")[:200]] += 1

    async def _last(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        what: Expected,
        frame: bytes,
        number: int,
    ) -> None:
        """A frame that ends the connection, by the server or, if it has to wait for more of it, by us."""
        try:
            writer.write(frame)
            if what is Expected.AWAITED:
                self.report.awaited += 1
                return
            self.report.closed += 1
            async with asyncio.timeout(PATIENCE_S):
                while await reader.read(1 << 16):
                    pass
        except ConnectionError:
            pass  # it did not even read all of it
        except TimeoutError:
            raise AssertionError(f"frame {number} should close its connection: {frame[:300]!r}") from None
