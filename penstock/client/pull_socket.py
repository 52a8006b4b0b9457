"""Connections that only pull: a thread asks, works on something else, and waits for the answer's bytes.

    ask     the request leaves; the broker works on it while the caller does
    head    the answer but for its records: where the next one begins, so that it can be asked for before
    body    the records, received by the system into the memory that is handed on, in one call

The event loop's connections are made for many small frames. A scan has few, large ones, and each of its threads waits
for its own: a loop beside them would wake up for every part of an answer and take the interpreter from whoever
decodes the one before. A plain socket costs half the processor time (docs/performance.md).

Bodies lie in buffers that `Buffers` keeps for the next answer, once the reader gives them back: memory that was just
used is still near to the processor.

Rules: the same limits on frames as everywhere (A1), before memory is asked for. Answers may come in any order: those
that come early wait. A peer that says nothing at all for SILENT_S while an answer is due is given up; a slow answer
that keeps coming is not. A socket serves one thread at a time, `PullSockets` any number. Never answers requests:
brokers have none for who never registered.
"""

from __future__ import annotations

import threading

from penstock.errors import CallTimeoutError, ClientClosedError, ConnectError, ConnectionLostError, FrameError
from penstock.protocol.command import (
    PREFIX_SIZE,
    Command,
    FrameLimits,
    decode_frame,
    encode_frame,
    frame_size,
)
from penstock.remoting import TlsOptions
from penstock.remoting.client import split_address
from penstock.runtime.network import Wire, dial

# One message may be as large as its broker allows, whatever was asked for.
LIMITS = FrameLimits(128 << 20, 256 << 10, 256)
CONNECT_TIMEOUT_S = 3.0
SILENT_S = 10.0
# Buffers that wait for the next answer, and how large they are at least.
BUFFERS_KEPT = 4
BUFFER_MIN = 64 << 10
# Connections to one address that wait for the next reader.
IDLE_MAX = 8


class Buffers:
    """Memory for bodies. Any thread may take and give back."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []

    def take(self, size: int) -> bytearray:
        """At least so many bytes, of any content."""
        try:
            while len(kept := self._free.pop()) < size:
                pass  # too small by now: the next ones will be as large as this
        except IndexError:
            return bytearray(max(size, BUFFER_MIN))
        return kept

    def give_back(self, data: bytes | bytearray | memoryview) -> None:
        """The body of an answer that nobody will look at any more."""
        if isinstance(data, memoryview) and isinstance(data.obj, bytearray):
            buffer = data.obj
            try:
                data.release()
                buffer.append(buffer.pop())  # refused while there is any other view of it; moves nothing
            except BufferError:
                return  # somebody does look at it
            if len(self._free) < BUFFERS_KEPT:
                self._free.append(buffer)


class PullSocket:
    """One connection to a broker. After any error it is of no more use: close it."""

    def __init__(self, address: str, wire: Wire, buffers: Buffers) -> None:
        self.address = address
        self.wire = wire
        self._buffers = buffers
        self._opaque = 0
        # Asked for and not handed out; answers that came before their turn; bytes of the body that is next to come.
        self._due: set[int] = set()
        self._early: dict[int, Command] = {}
        self._body_size = 0

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is on its way: the next reader can use it."""
        return not self._due and not self._body_size

    @property
    def is_alive(self) -> bool:
        """Whether the other side has it open still, as far as is known here."""
        return self.wire.is_alive()

    def ask(self, command: Command) -> int:
        """Send a request; the number to ask for its answer with."""
        self._opaque = self._opaque % 0x7FFFFFFF + 1
        command.opaque = self._opaque
        try:
            self.wire.send(encode_frame(command))
        except OSError as error:
            raise self._lost(error) from error
        self._due.add(self._opaque)
        return self._opaque

    def head(self, opaque: int) -> tuple[Command, int]:
        """The answer to a request, whatever its code, and the size of its body, which `body` has to read next."""
        while opaque not in self._early:
            command = self._next_head()
            if not command.is_response or command.opaque not in self._due:
                self.body(command)
            elif command.opaque == opaque:
                self._due.discard(opaque)
                return command, self._body_size
            else:
                self._early[command.opaque] = self.body(command)
        self._due.discard(opaque)
        early = self._early.pop(opaque)
        return early, len(early.body)

    def forget(self, opaque: int) -> None:
        """Nobody wants this answer any more; it is passed over when it comes."""
        self._due.discard(opaque)
        self._early.pop(opaque, None)

    def body(self, command: Command) -> Command:
        """The same answer with its body: a buffer that belongs to the caller."""
        if self._body_size:
            target = memoryview(self._buffers.take(self._body_size))[: self._body_size]
            self._fill(target)
            self._body_size = 0
            command.body = target  # type: ignore[assignment]
        return command

    def call(self, command: Command) -> Command:
        """Ask and wait."""
        return self.body(self.head(self.ask(command))[0])

    def close(self) -> None:
        """Drop the connection; a thread that waits for it is told."""
        self.wire.close()

    # -- frames ----------------------------------------------------------------------------------------------

    def _next_head(self) -> Command:
        prefix = memoryview(bytearray(PREFIX_SIZE))
        self._fill(prefix)
        size = frame_size(prefix, 0, LIMITS)
        header_size = int.from_bytes(prefix[5:8], "big")
        if not header_size:
            raise FrameError("a frame without a header")
        # Decoded as a frame of its own, with a length that leaves the body out.
        head = bytearray(PREFIX_SIZE + header_size)
        head[:4] = (4 + header_size).to_bytes(4, "big")
        head[4:PREFIX_SIZE] = prefix[4:]
        self._fill(memoryview(head)[PREFIX_SIZE:])
        command = decode_frame(bytes(head), 0, len(head), LIMITS)
        self._body_size = size - len(head)
        return command

    def _fill(self, target: memoryview) -> None:
        at = 0
        while at < len(target):
            try:
                count = self.wire.receive(target[at:])
            except TimeoutError as error:
                raise CallTimeoutError(
                    f"{self.address} did not answer in time",
                    "it may be overloaded or cut off; it is tried again",
                ) from error
            except OSError as error:
                raise self._lost(error) from error
            if not count:
                raise self._lost(None)
            at += count

    def _lost(self, error: OSError | None) -> ConnectionLostError:
        reason = str(error) if error else "it was closed"
        return ConnectionLostError(
            f"the connection to {self.address} was lost: {reason}", "it is tried again"
        )


class PullSockets:
    """Connections by address, for any number of threads; each is used by one reader at a time."""

    def __init__(self, tls: TlsOptions | None = None) -> None:
        self.buffers = Buffers()
        self._tls = tls
        self._lock = threading.Lock()
        self.idle: dict[str, list[PullSocket]] = {}
        self.opened: set[PullSocket] = set()
        self.is_closed = False

    def borrow(self, address: str) -> PullSocket:
        """A connection that nobody else uses; ConnectError if nobody is there."""
        self.check_open()
        while (kept := self._kept(address)) is not None:
            if kept.is_alive:
                return kept
            self._drop(kept)
        made = PullSocket(address, self._dial(address), self.buffers)
        with self._lock:
            self.opened.add(made)
        try:
            self.check_open()
        except ClientClosedError:
            self._drop(made)
            raise
        return made

    def check_open(self) -> None:
        """ClientClosedError once it is closed."""
        if self.is_closed:
            raise ClientClosedError("the scan is closed", "make a new one")

    def _kept(self, address: str) -> PullSocket | None:
        with self._lock:
            idle = self.idle.get(address)
            return idle.pop() if idle else None

    def _dial(self, address: str) -> Wire:
        host, port = split_address(address)
        context = self._tls.client_context() if self._tls is not None else None
        try:
            return dial(host, port, context, connect_s=CONNECT_TIMEOUT_S, silent_s=SILENT_S)
        except TimeoutError as error:
            raise ConnectError(
                f"connecting to {address} took longer than {CONNECT_TIMEOUT_S:g} s",
                "is the address right, and is nothing in between dropping packets?",
            ) from error
        except OSError as error:
            raise ConnectError(
                f"cannot connect to {address}: {error.strerror or error}", "is the broker running there?"
            ) from error

    def give_back(self, used: PullSocket) -> None:
        """Done with for now; one that still has an answer to come is closed."""
        with self._lock:
            idle = self.idle.setdefault(used.address, [])
            if used in self.opened and used.is_quiet and len(idle) < IDLE_MAX and not self.is_closed:
                idle.append(used)
                return
        self._drop(used)

    def failed(self, used: PullSocket) -> None:
        """Close one that failed, and those that wait for a reader: what cut it off has cut off them, and finding
        that out takes SILENT_S for each."""
        with self._lock:
            others = self.idle.pop(used.address, [])
        for one in (used, *others):
            self._drop(one)

    def _drop(self, used: PullSocket) -> None:
        with self._lock:
            self.opened.discard(used)
        used.close()

    def call(self, address: str, command: Command) -> Command:
        """One question, one answer. Bytes that make no sense are a lost connection: whoever is there now is no
        broker, and that may be elsewhere."""
        used = self.borrow(address)
        try:
            answer = used.call(command)
        except FrameError as error:
            self.failed(used)
            raise ConnectionLostError(f"{address} answers nonsense: {error.message}", error.hint) from error
        except BaseException:
            self.failed(used)
            raise
        self.give_back(used)
        return answer

    def close(self) -> None:
        """Close all of them, also those that somebody waits for."""
        with self._lock:
            self.is_closed = True
            some, self.opened, self.idle = list(self.opened), set(), {}
        for one in some:
            one.close()
