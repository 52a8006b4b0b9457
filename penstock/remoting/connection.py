"""One connection to a peer, either end of it: requests both ways, answers in any order.

All frames of one read are handled before anything is written, and their answers leave in one write. A broker
may put a `FastPath` in front, which takes whole runs of frames out of the chunk; the rest, and everything
where there is none, goes frame by frame through the processor table.

Owned by the event loop. Back-pressure: a peer that does not read its answers is not read from, and what it has
asked already waits; one that goes on not reading is closed (A15). A peer whose requests take long gets a slice
of time, then the others have theirs (A14). Framing errors close the connection before memory is asked for (A1).
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Protocol, cast

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
# How long one peer's requests are handled before those of others are looked at.
SLICE_MS = 20
# Answers that are gathered before they are written, while there are more requests to handle.
ANSWERS_BYTES = 1024 * 1024
# Pieces of a frame that are smaller than this are joined at once: kept apart, each would cost far more than it holds.
SMALL_PIECE = 4 * 1024


class FastPath(Protocol):
    """Takes runs of frames that need no closer look."""

    def process(self, connection: Connection, data: bytes, start: int) -> int:
        """Handle frames from `start` on; where the first one begins that it leaves to the processor table, or
        that is not complete. It writes answers itself, now or later."""


class Connection(asyncio.Protocol):
    """See the module's text. Made by a server or a client, never directly."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._limits = endpoint.options.limits
        self._transport: asyncio.Transport | None = None
        # Bytes of a frame that is not complete, or of frames that were put off.
        self._partial: list[bytes | bytearray] = []
        self.partial_size = 0
        self._needed = 0
        self._is_put_off = False
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
        self.opened_ms = self.active_ms = self.heard_ms = now
        # Since when a frame has been awaited: one that has begun, or a peer's first.
        self.frame_since_ms: int | None = now if endpoint.accepts else None
        self.paused_since_ms: int | None = None

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
        self._transport.set_write_buffer_limits(high=self._endpoint.options.write_buffer_pause_bytes)
        self._endpoint.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._take_partial()
        for task in self._tasks:
            task.cancel()
        pending, self._pending = self._pending, {}
        reason = self.close_reason or (str(error) if error else "the peer closed it")
        for respond, _, _ in pending.values():
            respond(
                ConnectionLostError(
                    f"the connection to {self.peer} was lost: {reason}",
                    "the request may have been carried out",
                )
            )
        self._endpoint.closed(self)

    def data_received(self, data: bytes) -> None:
        self.active_ms = self.heard_ms = self._endpoint.now_ms
        if self._partial:
            self._keep(data)
            if self.partial_size >= self._needed and not self._is_put_off:
                self._work(self._take_partial())
        else:
            self._work(data)

    def _work(self, data: bytes) -> None:
        """Handle what is complete, keep the rest."""
        self._out, self._out_size = [], 0
        try:
            consumed = self._handle(data)
        except FrameError as error:
            self._flush_out()  # what was asked before the garbage is answered
            self._refuse_peer(error)
            return
        self._flush_out()
        if consumed == len(data):
            self.frame_since_ms = None
            return
        rest = data[consumed:] if consumed else data
        self._keep(rest)
        try:
            self._needed = PREFIX_SIZE if len(rest) < PREFIX_SIZE else frame_size(rest, 0, self._limits)
        except FrameError as error:
            self._refuse_peer(error)
            return
        if self._needed <= len(rest):
            self._put_off()
        elif self.frame_since_ms is None or consumed:
            self.frame_since_ms = self.active_ms

    def _keep(self, data: bytes) -> None:
        self.partial_size += len(data)
        last = self._partial[-1] if self._partial else None
        if isinstance(last, bytearray) and len(data) < SMALL_PIECE:
            last += data
        else:
            self._partial.append(data if len(data) >= SMALL_PIECE or last is None else bytearray(data))
        self._endpoint.kept(len(data))

    def _take_partial(self) -> bytes:
        data = b"".join(self._partial)
        self._partial.clear()
        self._endpoint.kept(-self.partial_size)
        self.partial_size = 0
        return data

    # -- waiting our turn ------------------------------------------------------------------------------------

    def _put_off(self) -> None:
        """Complete frames are left over: the peer has to read first, or others have their turn."""
        if self._transport is None or not self.is_open:
            return
        self._is_put_off = True
        self.frame_since_ms = None
        self._transport.pause_reading()
        if self.paused_since_ms is None:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """Handle what was put off; unless the peer has to read first, in which case that calls this again."""
        if not self._is_put_off or self.paused_since_ms is not None or not self.is_open:
            return
        self._is_put_off = False
        self._work(self._take_partial())
        self._read_again()

    def _read_again(self) -> None:
        if self._is_put_off or self.paused_since_ms is not None:
            return
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """The peer does not read what we answer: do not read what it asks."""
        self.paused_since_ms = self._endpoint.now_ms
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._endpoint.paused(self)

    def resume_writing(self) -> None:
        self.paused_since_ms = None
        self._endpoint.resumed(self)
        if self._is_put_off:
            asyncio.get_running_loop().call_soon(self._go_on)
        self._read_again()

    # -- frames ----------------------------------------------------------------------------------------------

    def _handle(self, data: bytes) -> int:
        """Handle complete frames, all of them unless it is enough for now; how many bytes they took."""
        at, end, fast, clock = 0, len(data), self._endpoint.fast_path, self._endpoint.runtime.clock
        deadline_ms = 0
        while end - at >= PREFIX_SIZE and self.is_open:
            if fast is not None:
                at = fast.process(self, data, at)
                if end - at < PREFIX_SIZE:
                    break
            size = frame_size(data, at, self._limits)
            if size > end - at:
                break
            try:
                command = decode_frame(data, at, at + size, self._limits)
            except FrameError as error:
                if error.opaque is None:
                    raise
                refused = Command(0, opaque=error.opaque)
                self._put(refused.answer(ResponseCode.SYSTEM_ERROR, str(error)[:REMARK_MAX]))
            else:
                self._take(command)
            at += size
            if self._is_clogged():
                break
            now_ms = clock.monotonic_ms()
            if not deadline_ms:
                deadline_ms = now_ms + SLICE_MS
            elif now_ms >= deadline_ms:
                break
        return at

    def _is_clogged(self) -> bool:
        """Whether more was answered than the peer has read; what was answered so far is on its way then."""
        if self._out_size > min(self._endpoint.options.write_buffer_pause_bytes, ANSWERS_BYTES):
            self._flush_out()
            self._out, self._out_size = [], 0
        return self.paused_since_ms is not None

    def _refuse_peer(self, error: FrameError) -> None:
        self._endpoint.refused(self, str(error))
        self.close(f"not a frame: {error}")

    def _take(self, command: Command) -> None:
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
            task = asyncio.ensure_future(self._later(command, outcome))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

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
        guard = self._endpoint.guard
        if response.body and guard is not None and not guard.still_allows(self.peer.ip, request):
            response = request.answer(ResponseCode.NO_PERMISSION, WITHDRAWN)
        self._reply(request, response)

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
        elif self.is_open and self._transport is not None:
            self.active_ms = self._endpoint.now_ms
            self._transport.write(data)
            self._look_at_buffer()

    def _flush_out(self) -> None:
        out, self._out = self._out, None
        if not out or self._transport is None or not self.is_open:
            return
        if len(out) == 1:
            self._transport.write(out[0])
        elif self._out_size > len(out) * LARGE_BODY:
            self._transport.writelines(out)  # large ones leave from where they are
        else:
            self._transport.write(b"".join(out))
        self._look_at_buffer()

    def _look_at_buffer(self) -> None:
        if self.paused_since_ms is not None and self._transport is not None:
            waiting = self._transport.get_write_buffer_size()
            if waiting > self._endpoint.options.write_buffer_bytes_max:
                self.abort(f"{waiting} bytes wait for a peer that does not read")

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
                    f"{self.peer} did not answer in time", "the request may have been carried out"
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
        if self._transport is not None:
            self._transport.abort()
        self.is_open = False
        self._take_partial()


def _address(name: Any) -> HostAddress:
    """A socket's name as an address; an IPv4 peer on an IPv6 socket is still an IPv4 peer."""
    if not isinstance(name, tuple) or len(name) < 2:
        return NOBODY
    ip = str(name[0]).partition("%")[0]
    return HostAddress(ip.removeprefix("::ffff:") if "." in ip else ip, int(name[1]))
