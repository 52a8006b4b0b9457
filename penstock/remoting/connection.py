"""One connection to a peer, either end of it: requests both ways, answers in any order.

All frames of one read are handled before anything is written, and their answers leave in one write. A broker
may put a `FastPath` in front, which takes whole runs of frames out of the chunk; the rest, and everything
where there is none, goes frame by frame through the processor table.

Owned by the event loop. Requests are handled where they were read while the loop has time, else in turns with those
of other connections (`turns.py`, A14). A peer that does not read its answers is not read from, and what it has asked
already waits, as it does while many of its requests need threads; one that makes no progress is closed (`memory.py`,
A15). What a server does later for a request, when a
message wakes it or a thread has prepared it, passes through the same turns (`submit`, `in_turn`); threads are shared
alike (`in_thread`). Framing errors close the connection before memory is asked for (A1).
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from penstock.errors import (
    CallTimeoutError,
    ConnectError,
    ConnectionLostError,
    FrameError,
    PenstockError,
    RemotingError,
)
from penstock.message import HostAddress
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import (
    ONEWAY_FLAG,
    PREFIX_SIZE,
    Command,
    decode_frame,
    encode_frame,
    encode_head,
    frame_size,
)
from penstock.remoting.hooks import OnResponse, observed, prepare
from penstock.remoting.turns import QUANTUM_NS
from penstock.runtime.network import limit_unsent

if TYPE_CHECKING:
    from penstock.remoting.endpoint import Endpoint

_LOG = logging.getLogger("penstock.remoting")
_NUMBERS = itertools.count(1)
NOBODY = HostAddress("0.0.0.0", 0)
LARGE_BODY = 16 * 1024
REMARK_MAX = 2048
# A shorter silence says nothing about a connection, however impatient the caller.
SILENT_MS = 500
WITHDRAWN = "the permission was withdrawn while the request waited; ask an admin"
# Answers that are gathered before they are written, while there are more requests to handle.
ANSWERS_BYTES = 256 * 1024
# Over TLS, what one write hands over: the transport below keeps as much where it does not count.
TLS_WRITE_BYTES = 64 * 1024
# What the system takes of us for a peer that does not read.
SENT_AHEAD_BYTES = 256 * 1024
# What a request under way is counted with besides its frame.
REQUEST_BYTES = 1024
# Who sends so much at once besides one request does not wait for answers.
BACKLOG_BYTES = 16 * 1024
# Requests of one peer that wait for threads; with so many, what it asks next waits to be read.
IN_THREADS_MAX = 16
T = TypeVar("T")
# Pieces of a frame that are smaller than this are joined at once: kept apart, each would cost far more than it holds.
SMALL_PIECE = 4 * 1024


# What clients of other protocols begin with, and what to do about it.
_FOREIGN = (
    (
        (b"PRI * HT",),
        "it speaks HTTP/2, as gRPC clients of RocketMQ 5 do; this port speaks RocketMQ's remoting protocol. Connect "
        "gRPC clients to a RocketMQ proxy",
    ),
    (
        (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"CONNECT ", b"PATCH ", b"TRACE "),
        "it speaks HTTP; this port speaks RocketMQ's remoting protocol",
    ),
    ((b"\x16\x03",), "it speaks TLS, which is off at this port; see tls.mode"),
)


def _foreign(data: bytes) -> str:
    """The protocol of a peer whose first bytes are no frame; empty if they are of none that is known."""
    return next((text for starts, text in _FOREIGN if data.startswith(starts)), "")


class FastPath(Protocol):
    """Takes runs of frames that need no closer look."""

    def process(self, connection: Connection, data: bytes, start: int) -> int:
        """Handle frames from `start` on, as many as take a millisecond or so; where the first one begins that it
        leaves, or that is not complete. If it takes none, the first one is the processor table's. It writes answers
        itself, now or later."""


class Connection(asyncio.Protocol):
    """See the module's text. Made by a server or a client, never directly."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._limits = endpoint.options.limits
        self._transport: asyncio.Transport | None = None
        # Bytes of a frame that is not complete, or of frames that wait for their turn (`_is_put_off`).
        self._partial: list[bytes | bytearray] = []
        self.partial_size = 0
        self._needed = 0
        self._is_put_off = False
        # What else is done in this connection's turn.
        self._jobs: deque[Callable[[], None]] = deque()
        # Requests that threads work for, or will; and those of this turn that may turn out to need one.
        self._in_threads = self._begun = 0
        # Whether it is worth asking `_must_wait`: of most connections it is not.
        self._may_have_to_wait = False
        # Kept by `Turns` and by `Memory`.
        self.turn_tag = 0
        self.is_heavy = self.is_queued = False
        self.kept_bytes = self.noted_bytes = 0
        self._out: list[bytes | bytearray] | None = None
        self._out_size = 0
        # Who waits for which answer: until when, and since when.
        self._pending: dict[int, tuple[OnResponse, int, int]] = {}
        self._opaques = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self.id = next(_NUMBERS)
        self.peer = self.local = NOBODY
        self.is_open = False
        self.close_reason = ""
        # What rooms above keep with a connection; the key is the room's name.
        self.attributes: dict[str, Any] = {}
        now = endpoint.runtime.clock.monotonic_ms()
        self.opened_ms = self.active_ms = self.heard_ms = self.kept_since_ms = self.progress_ms = now
        # Since when a frame has been awaited: one that has begun, or a peer's first.
        self.frame_since_ms: int | None = now if endpoint.accepts else None
        # Since when the system has not taken all that was written.
        self.paused_since_ms: int | None = None
        self._write_size = 0
        self._has_spoken = False

    @property
    def is_clogged(self) -> bool:
        """Whether the peer has to read before more is done for it."""
        if self.paused_since_ms is None or not self._endpoint.accepts:
            return False  # a client always reads, or two ends could wait for each other
        return self.unread_bytes > self._endpoint.memory.allowance

    @property
    def _must_wait(self) -> bool:
        """Whether requests have to wait: until the peer has read, or until threads are done with those before."""
        return self._in_threads >= IN_THREADS_MAX or (self.paused_since_ms is not None and self.is_clogged)

    @property
    def answer_room(self) -> int:
        """How large an answer should be at most that could be larger."""
        return self._endpoint.memory.room

    @property
    def is_waiting(self) -> bool:
        """Whether a request of ours is still unanswered."""
        return bool(self._pending)

    @property
    def unread_bytes(self) -> int:
        """What the peer has not read yet, as far as it is kept here."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def __repr__(self) -> str:
        return f"Connection({self.id}, {self.peer})"

    # -- transport's side ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = _address(transport.get_extra_info("peername"))
        self.local = _address(transport.get_extra_info("sockname"))
        self.is_open = True
        if self._endpoint.accepts:
            limit_unsent(transport, SENT_AHEAD_BYTES)
        # Every byte that the system does not take is known, and so is when it has taken the last one.
        self._transport.set_write_buffer_limits(high=0)
        if transport.get_extra_info("ssl_object") is not None:
            self._write_size = TLS_WRITE_BYTES
        self._endpoint.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._take_partial()
        self._jobs.clear()
        self._endpoint.memory.forget(self)
        self._endpoint.threads.forget(self)
        self._transport = None
        for task in self._tasks:
            task.cancel()
        pending, self._pending = self._pending, {}
        reason = self.close_reason or (str(error) if error else "the peer closed it")
        for respond, _, _ in pending.values():
            respond(
                ConnectionLostError(
                    f"the connection to {self.peer} was lost: {reason}",
                    "the request may have been carried out",
                    reason=reason,
                )
            )
        self._endpoint.closed(self)

    def data_received(self, data: bytes) -> None:
        endpoint = self._endpoint
        turns = endpoint.turns
        self.active_ms = self.heard_ms = endpoint.now_ms
        is_our_turn = turns.is_free and not (self._may_have_to_wait and self._must_wait)
        if self._partial:
            self._keep(data)
            if self._is_put_off or self.partial_size < self._needed:
                return
            if is_our_turn:
                data = self._take_partial()
        elif not is_our_turn:
            self._keep(data)
        if not is_our_turn:
            self._put_off()
            return
        began_ns = turns.now_ns()
        self._work(data, began_ns + QUANTUM_NS)
        turns.served(self, began_ns)

    def _work(self, data: bytes, deadline_ns: int) -> None:
        """Handle what is complete, keep the rest."""
        self._out, self._out_size = [], 0
        self._begun = 0
        try:
            consumed = self._handle(data, deadline_ns)
        except FrameError as error:
            self._flush_out()  # what was asked before the garbage is answered
            self._refuse_peer(error, data)
            return
        self._flush_out()
        if consumed and not self._has_spoken:
            self._has_spoken = True
            self._endpoint.spoke(self)
        if consumed == len(data):
            self.frame_since_ms = None
            return
        rest = data[consumed:] if consumed else data
        self._keep(rest)
        try:
            self._needed = PREFIX_SIZE if len(rest) < PREFIX_SIZE else frame_size(rest, 0, self._limits)
        except FrameError as error:
            self._refuse_peer(error, rest)
            return
        if self._needed <= len(rest):
            self._put_off(is_heavy=True)
        elif self.frame_since_ms is None or consumed:
            self.frame_since_ms = self.active_ms

    def _keep(self, data: bytes) -> None:
        if not self.is_open:
            return
        self.partial_size += len(data)
        last = self._partial[-1] if self._partial else None
        if isinstance(last, bytearray) and len(data) < SMALL_PIECE:
            last += data
        else:
            self._partial.append(data if len(data) >= SMALL_PIECE or last is None else bytearray(data))
        self._endpoint.kept(self, len(data))

    def _take_partial(self) -> bytes:
        data = b"".join(self._partial)
        self._partial.clear()
        self._endpoint.kept(self, -self.partial_size)
        self.partial_size = 0
        return data

    # -- waiting our turn ------------------------------------------------------------------------------------

    def submit(self, job: Callable[[], None]) -> None:
        """Do something for this peer in its turn, once it has room for an answer; never if it is closed before.

        For what wakes a request that waits: a job takes about as long as a request, and never raises.
        """
        if self.is_open:
            self._jobs.append(job)
            self._endpoint.turns.add(self)

    async def in_turn(self, work: Callable[[], T]) -> T:
        """The outcome of something that is done in this peer's turn: what a request does after it had to wait."""
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def job() -> None:
            if outcome.done():
                return
            try:
                outcome.set_result(work())
            except Exception as error:
                outcome.set_exception(error)

        self.submit(job)
        return await outcome

    async def in_thread(self, prepare: Callable[[], Callable[[], T]]) -> T:
        """The outcome of work that would hold up the loop, done by a thread in this connection's turn. `prepare` is
        called in the loop just before, and returns the work."""
        self._in_threads += 1
        self._may_have_to_wait = True
        try:
            return await self._endpoint.threads.run(self, prepare)
        finally:
            self._in_threads -= 1
            self._may_have_to_wait = self._in_threads > 0 or self.paused_since_ms is not None
            if self._is_put_off and self.is_open:
                self._endpoint.turns.add(self, is_heavy=True)

    def serve(self, deadline_ns: int) -> bool:
        """One turn; whether something is left for the next one, and need not wait for the peer."""
        clock = self._endpoint.runtime.clock
        while self._jobs and not self.is_clogged:
            self._jobs.popleft()()
            if clock.monotonic_ns() >= deadline_ns:
                break
        else:
            if self._is_put_off and not self._must_wait:
                self._is_put_off = False
                self._work(self._take_partial(), deadline_ns)
        self._resume_reading()
        if self._jobs:
            return self.is_open and not self.is_clogged
        return self._is_put_off and self.is_open and not self._must_wait

    def _put_off(self, *, is_heavy: bool = False) -> None:
        """What is kept may hold a whole frame, which waits for its turn, for threads or for the peer to read."""
        if self._transport is None or not self.is_open:
            return
        self._is_put_off = True
        self.frame_since_ms = None
        self._transport.pause_reading()
        if not self._must_wait:  # else it is served when that has changed
            self._endpoint.turns.add(self, is_heavy=is_heavy or self._has_backlog)

    @property
    def _has_backlog(self) -> bool:
        """Whether much is kept besides the first frame, which may be a large message."""
        first = self._partial[0] if self._partial else b""
        return self.partial_size - int.from_bytes(first[:4], "big") > BACKLOG_BYTES

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._is_put_off:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """The system has not taken all that was written."""
        self.paused_since_ms = self._endpoint.now_ms
        self._may_have_to_wait = True

    def resume_writing(self) -> None:
        """It has now."""
        self.paused_since_ms = None
        self._may_have_to_wait = self._in_threads > 0
        self._endpoint.memory.note(self, self._endpoint.now_ms)
        if self._jobs or self._is_put_off:
            self._endpoint.turns.add(self, is_heavy=True)
        self._endpoint.threads.resume(self)
        self._resume_reading()

    # -- frames ----------------------------------------------------------------------------------------------

    def _handle(self, data: bytes, deadline_ns: int) -> int:
        """Handle complete frames, all of them unless it is enough for now; how many bytes they took."""
        at, end, fast = 0, len(data), self._endpoint.fast_path
        while end - at >= PREFIX_SIZE and self.is_open:
            taken = at if fast is None else fast.process(self, data, at)
            if taken == at:
                taken = self._handle_one(data, at)
                if taken == at:
                    break
            at = taken
            if at == end or self._must_stop() or self._endpoint.turns.now_ns() >= deadline_ns:
                break
        return at

    def _handle_one(self, data: bytes, at: int) -> int:
        """Have the processor table handle a frame; where the next one begins, or the same if it is not complete."""
        end = at + frame_size(data, at, self._limits)
        if end > len(data):
            return at
        try:
            command = decode_frame(data, at, end, self._limits)
        except FrameError as error:
            if error.opaque is None:
                raise
            refused = Command(0, opaque=error.opaque)
            self._put(refused.answer(ResponseCode.SYSTEM_ERROR, str(error)[:REMARK_MAX]))
        else:
            self._take(command, end - at)
        return end

    def _must_stop(self) -> bool:
        """Whether the next frames have to wait; where much was answered, that is on its way then."""
        if self._out_size > LARGE_BODY and self._out_size > min(
            self._endpoint.memory.allowance, ANSWERS_BYTES
        ):
            self._flush_out()
            self._out, self._out_size = [], 0
        return self._begun >= IN_THREADS_MAX or self._must_wait

    def _refuse_peer(self, error: FrameError, data: bytes) -> None:
        self._endpoint.refused(self, str(error) if self._has_spoken else _foreign(data) or str(error))
        self.close(f"not a frame: {error}")

    def _take(self, command: Command, size: int) -> None:
        if command.is_response:
            waiting = self._pending.pop(command.opaque, None)
            if waiting is not None:  # else too late: its caller was told so long ago
                waiting[0](command)
            return
        handler = self._endpoint.table.find(command.code)
        if handler is None:
            self._reply(
                command,
                command.answer(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported"
                ),
            )
            return
        guard = self._endpoint.guard
        try:
            if guard is not None:
                guard.check(self.peer.ip, command)
            outcome = handler(self, command)
        except Exception as error:
            self._reply(command, self._failure(command, error))
            return
        finally:
            if guard is not None:
                guard.handled()
        if outcome is None:
            return
        if isinstance(outcome, Command):
            self._reply(command, outcome)
        elif len(self._tasks) >= self._endpoint.options.requests_in_flight_max:
            if inspect.iscoroutine(outcome):
                outcome.close()
            busy = f"[OVERLOAD]{len(self._tasks)} requests of this connection are under way; wait for answers"
            self._reply(command, command.answer(ResponseCode.SYSTEM_BUSY, busy))
        else:
            self._begin(command, outcome, size + REQUEST_BYTES)

    def _begin(self, command: Command, outcome: Awaitable[Command | None], size: int) -> None:
        """A request is under way: until it is answered it counts with the size of its frame."""
        self._endpoint.kept(self, size)
        self._begun += 1
        task = asyncio.ensure_future(self._later(command, outcome))
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if self._transport is not None:  # else all that it kept was forgotten at once
                self._endpoint.kept(self, -size)

        task.add_done_callback(ended)

    async def _later(self, command: Command, outcome: Awaitable[Command | None]) -> None:
        try:
            answer = await outcome
        except Exception as error:
            answer = self._failure(command, error)
        if answer is not None:
            self._reply(command, answer)

    def _failure(self, command: Command, error: Exception) -> Command:
        if isinstance(error, PenstockError):
            return command.answer(error.code, str(error)[:REMARK_MAX])
        _LOG.error("request %s from %s failed", command.code, self.peer, exc_info=error)
        return command.answer(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"[:REMARK_MAX])

    # -- sending ---------------------------------------------------------------------------------------------

    def _reply(self, request: Command, response: Command) -> None:
        if request.is_oneway:
            return
        if request.answer_fields:
            response.fields = {**response.fields, **request.answer_fields}
        self._put(response)

    def answer(self, request: Command, response: Command) -> None:
        """Answer a request whose handler returned None. What it waited for is given only to who may still have it."""
        if not self.is_open:
            return
        if response.body and not self.still_allows(request):
            response = request.answer(ResponseCode.NO_PERMISSION, WITHDRAWN)
        self._reply(request, response)

    def still_allows(self, request: Command) -> bool:
        """Whether the sender of a request that waited may still do this; asked before it takes anything."""
        guard = self._endpoint.guard
        return guard is None or guard.still_allows(self.peer.ip, request)

    def _put(self, command: Command) -> None:
        body = command.body
        if len(body) < LARGE_BODY:
            self.write(encode_frame(command))
        else:  # two buffers instead of one large copy
            self.write(encode_head(command, len(body)))
            self.write(body)

    def write(self, data: bytes | bytearray) -> None:
        """Bytes of whole frames. Written at once or, while a chunk is being handled, together with the rest."""
        if self._out is not None:
            self._out.append(data)
            self._out_size += len(data)
        elif self.is_open:
            self.active_ms = self._endpoint.now_ms
            self._hand_over([data], len(data))

    def _flush_out(self) -> None:
        out, self._out = self._out, None
        if not out or not self.is_open:
            return
        if len(out) == 1 and not self._may_have_to_wait and not self._write_size:
            self._transport.write(out[0])  # type: ignore[union-attr]  # it is open
            if self.paused_since_ms is not None:
                self._endpoint.memory.note(self, self._endpoint.now_ms, self._out_size)
            return
        self._hand_over(out, self._out_size)

    def _hand_over(self, out: list[bytes | bytearray], size: int) -> None:
        """To the transport, and count what it has to keep."""
        transport = self._transport
        if transport is None:
            return
        endpoint = self._endpoint
        if self.paused_since_ms is not None:
            endpoint.memory.note(self, endpoint.now_ms)
            waiting = self.noted_bytes
            if waiting > endpoint.options.write_buffer_bytes_max:
                endpoint.give_up(self, f"{waiting} bytes wait for a peer that does not read")
                return
        if self._write_size and size > self._write_size:
            for one in out:
                for at in range(0, len(one), self._write_size):
                    transport.write(one[at : at + self._write_size])
        elif len(out) == 1:
            transport.write(out[0])
        elif size > len(out) * LARGE_BODY:
            transport.writelines(out)  # large ones leave from where they are
        else:
            transport.write(b"".join(out))
        if self.paused_since_ms is not None:
            endpoint.memory.note(self, endpoint.now_ms, size)

    def send(self, command: Command) -> None:
        """A one-way request: nobody will answer."""
        command.flag |= ONEWAY_FLAG
        command.opaque = self.next_opaque()
        hook = self._endpoint.hook
        if hook is not None:
            prepare(hook, str(self.peer), command)
        if self.is_open:
            self._put(command)

    def next_opaque(self) -> int:
        """Numbers of our own requests; from 1, because one client takes 0 for unset."""
        number = next(self._opaques)
        if number > 0x7FFFFFFF:
            self._opaques = itertools.count(2)
            number = 1
        return number

    def request(
        self, command: Command, respond: OnResponse, timeout_ms: int, *, is_again: bool = False
    ) -> None:
        """Send a request; `respond` is called once, with the response or why there is none."""
        opaque = command.opaque = self.next_opaque()
        hook = self._endpoint.hook
        if hook is not None:
            try:
                prepare(hook, str(self.peer), command)
            except RemotingError as error:
                respond(error)
                return
            deadline_ms, caller = self._endpoint.now_ms + timeout_ms, respond

            def send_again() -> None:
                left_ms = max(1, deadline_ms - self._endpoint.now_ms)
                self.request(command, caller, left_ms, is_again=True)

            respond = observed(hook, str(self.peer), command, caller, None if is_again else send_again)
        if not self.is_open:
            respond(ConnectError(f"the connection to {self.peer} is closed", "nothing was sent"))
            return
        now_ms = self._endpoint.now_ms
        self._pending[opaque] = (respond, now_ms + timeout_ms, now_ms)
        self._endpoint.watch_deadlines()
        self.write(encode_frame(command))

    async def call(self, command: Command, timeout_ms: int = 3_000) -> Command:
        """Send a request and wait for its response, whatever code that has."""
        waiting: asyncio.Future[Command] = asyncio.get_running_loop().create_future()

        def respond(outcome: Command | RemotingError) -> None:
            if waiting.done():
                return
            if isinstance(outcome, Command):
                waiting.set_result(outcome)
            else:
                waiting.set_exception(outcome)

        self.request(command, respond, timeout_ms)
        try:
            return await waiting
        finally:
            self._pending.pop(command.opaque, None)

    def expire(self, now_ms: int) -> bool:
        """Tell callers whose time is over; whether any are left.

        A server of which nothing at all was heard during a call that ended so may be gone without a word
        (power, cable, address translation): the next call dials again instead of asking a dead connection.
        """
        late = [opaque for opaque, (_, deadline, _) in self._pending.items() if deadline <= now_ms]
        is_silent = False
        for opaque in late:
            respond, _, since_ms = self._pending.pop(opaque)
            is_silent = is_silent or self.heard_ms <= since_ms
            respond(
                CallTimeoutError(
                    f"{self.peer} did not answer in time",
                    "the request may have been carried out",
                    reason="no answer in time",
                )
            )
        if is_silent and not self._endpoint.accepts and now_ms - self.heard_ms >= SILENT_MS:
            self.abort(f"nothing was heard of it for {now_ms - self.heard_ms} ms")
        return bool(self._pending)

    # -- closing ---------------------------------------------------------------------------------------------

    def close(self, why: str = "") -> None:
        """Close after what was written has gone out."""
        self.close_reason = self.close_reason or why
        if self._transport is not None:
            self._transport.close()
        self.is_open = False

    def abort(self, why: str = "") -> None:
        """Close at once; what was not sent is lost."""
        self.close_reason = self.close_reason or why
        self.is_open = False
        self._partial.clear()
        self.partial_size = 0
        self._endpoint.memory.forget(self)
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()


def _address(name: Any) -> HostAddress:
    """A socket's name as an address; an IPv4 peer on an IPv6 socket is still an IPv4 peer."""
    if not isinstance(name, tuple) or len(name) < 2:
        return NOBODY
    ip = str(name[0]).partition("%")[0]
    return HostAddress(ip.removeprefix("::ffff:") if "." in ip else ip, int(name[1]))
