"""Sends mutated frames at a server, many in flight, and holds it to what it owes for each.

A worker has one connection at a time. Frames that leave the connection usable go out in runs; behind each run goes
an honest question, and until its answer comes everything else that comes is an answer to the run or a request of
the server's own. A frame that has to close the connection goes last, and the close is waited for. So every frame
is one that the server really got, and a server that hangs, forgets to answer, does not close or closes without
cause is found.
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
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Target:
    """A server and what may be expected of it."""

    address: str
    # An honest question that needs nothing to be there.
    question: Command
    # Requests whose answers may come after those to later requests ...
    later: frozenset[int]
    # ... and those whose answers may take long, because they wait for messages or for a client.
    held: frozenset[int] = frozenset()


@dataclass(slots=True)
class Report:
    """What was sent and what came of it. Handled is what the server did something about that can be seen."""

    frames: int = 0
    owed: int = 0
    # Answers with code 0, with any other code, and connections that the server closed because of a frame.
    answered: int = 0
    refused: int = 0
    closed: int = 0
    # One-way requests and responses to nothing, frames that wait for more bytes, and waits for messages.
    unanswered: int = 0
    awaited: int = 0
    held: int = 0
    # Frames whose number another one on the same connection has: one answer is counted for both.
    repeated: int = 0
    connections: int = 0
    codes: Counter[int] = field(default_factory=Counter)
    # Answers that begin like an unexpected exception.
    surprises: Counter[str] = field(default_factory=Counter)

    @property
    def handled(self) -> int:
        return self.answered + self.refused + self.closed

    def __str__(self) -> str:
        codes = ", ".join(f"{code}: {count}" for code, count in sorted(self.codes.items()))
        return (
            f"{self.handled} handled (answered {self.answered}, refused {self.refused}, closed {self.closed}) of"
            f" {self.frames} frames over {self.connections} connections; not to be answered {self.unanswered}, held"
            f" {self.held}, cut off {self.awaited}; codes {codes}"
        )


class Storm:
    """Takes frames by number from one mutator; any number of workers share it."""

    def __init__(self, target: Target, mutator: Mutator) -> None:
        self._target = target
        self._mutator = mutator
        self._probes = itertools.count(PROBE_FIRST)
        self._numbers = itertools.count()
        self.report = Report()

    async def run(self, handled: int, workers: int = 3) -> None:
        """Send frames until so many are handled in all."""
        numbers = self._numbers_until(handled)
        await asyncio.gather(*(self._work(numbers) for _ in range(workers)))

    def _numbers_until(self, handled: int) -> Iterator[int]:
        while self.report.handled < handled:
            yield next(self._numbers)

    async def _work(self, numbers: Iterator[int]) -> None:
        host, _, port = self._target.address.rpartition(":")
        is_more = True
        while is_more:
            self.report.connections += 1
            reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
            peer = _Peer(self, reader, writer)
            try:
                is_more = await peer.talk(numbers)
            finally:
                await peer.close()

    @property
    def target(self) -> Target:
        return self._target

    def make(self, number: int) -> bytes:
        self.report.frames += 1
        return self._mutator.frame(number)

    def question(self) -> tuple[bytes, int]:
        asked = self._target.question
        asked.opaque = next(self._probes)
        return encode_frame(asked), asked.opaque

    def count(self, answer: Command) -> None:
        self.report.codes[answer.code] += 1
        if answer.code:
            self.report.refused += 1
        else:
            self.report.answered += 1
        word = (answer.remark or "").split(":", 1)[0]
        if answer.code == 1 and word.endswith(("Error", "Exception")):
            self.report.surprises[(answer.remark or "")[:200]] += 1


class _Peer:
    """One connection."""

    def __init__(self, storm: Storm, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._storm = storm
        self._reader = reader
        self._writer = writer
        # By opaque: the code and the number of a frame whose answer has not come.
        self._owed: dict[int, tuple[int, int]] = {}

    async def talk(self, numbers: Iterator[int]) -> bool:
        """Until the connection is used up; whether there are frames left."""
        for _ in range(RUNS):
            run, last = self._gather(numbers)
            if not run and last is None:
                await self._settle()
                return False
            await self._send(run)
            if last is not None:
                break
        else:
            last = None
        await self._settle()
        if last is not None:
            await self._end(*last)
        return True

    def _gather(self, numbers: Iterator[int]) -> tuple[bytes, tuple[Expected, bytes, int] | None]:
        """Frames for one run, and the one that ends the connection if it came to that."""
        run = bytearray()
        for number in itertools.islice(numbers, RUN):
            frame = self._storm.make(number)
            what, owed = expected(frame)
            if what is not Expected.HANDLED:
                return bytes(run), (what, frame, number)
            run += frame
            self._storm.report.unanswered += not owed
            for code, opaque in owed:
                self._storm.report.owed += 1
                self._storm.report.repeated += opaque in self._owed
                self._owed[opaque] = code, number
        return bytes(run), None

    async def _send(self, run: bytes) -> None:
        """A run and an honest question behind it; read until the question is answered."""
        question, opaque = self._storm.question()
        self._writer.write(run + question)
        async with asyncio.timeout(PATIENCE_S):
            await self._writer.drain()
            while await self._read() != opaque:
                pass
        target = self._storm.target
        late = {item for item in self._owed.values() if item[0] not in target.later | target.held}
        assert not late, f"code and number of frames that were passed over: {sorted(late)[:10]}"

    async def _read(self) -> int | None:
        """Take one frame; its opaque if it is an answer."""
        head = await self._reader.readexactly(4)
        frame = head + await self._reader.readexactly(struct.unpack(">i", head)[0])
        answer = decode_frame(frame, 0, len(frame))
        if not answer.is_response:
            return None
        if self._owed.pop(answer.opaque, None) is not None:
            self._storm.count(answer)
        return answer.opaque

    async def _settle(self) -> None:
        """All answers come in the end."""
        held = self._storm.target.held
        try:
            async with asyncio.timeout(PATIENCE_S):
                while any(code not in held for code, _ in self._owed.values()):
                    await self._read()
        except TimeoutError:
            left = [item for item in self._owed.values() if item[0] not in held]
            raise AssertionError(f"code and number of frames that were not answered: {left[:10]}") from None
        self._storm.report.held += len(self._owed)

    async def _end(self, what: Expected, frame: bytes, number: int) -> None:
        """A frame that ends the connection, by the server or, if it has to wait for more of it, by us."""
        self._writer.write(frame)
        if what is Expected.AWAITED:
            self._storm.report.awaited += 1
            return
        try:
            async with asyncio.timeout(PATIENCE_S):
                while await self._reader.read(1 << 16):
                    pass
        except ConnectionError:
            pass  # it did not even read all of it
        except TimeoutError:
            raise AssertionError(f"frame {number} should close its connection: {frame[:300]!r}") from None
        self._storm.report.closed += 1

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            pass
