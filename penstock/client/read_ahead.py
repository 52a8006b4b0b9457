"""Reading ranges of queues in a thread: answers in their order, the next ones on their way while one is worked on.

    ask                the range in hand, and of small ranges as many as make up one large answer, so that many small
                       ones take one round trip and not as many
    head of an answer  says where the next begins: it is asked for before the records of this one are read, so the
                       broker gathers while this thread receives and decodes
    one more           by the size of the rows so far, as many are asked for as fit into an answer; so it is known
                       where the one behind it will begin, and that is asked for too
    anything wrong     a lost connection, an error code, a broker that moved: that answer is asked for again through
                       `AsyncScan.pull`, which tries replicas and waits; what follows goes to whoever answered there

Belongs to one thread, which waits here. Uses connections of the scan's and gives them back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.client.loop_thread import LoopThread
from penstock.client.pull_socket import PullSocket
from penstock.client.scan_results import Pulled, PullStatus, QueueId
from penstock.client.scanning import AsyncScan, pull_command, pulled_of
from penstock.errors import ConnectError, PenstockError
from penstock.protocol.command import Command

QueueRange = tuple[QueueId, int, int]
# Pulls of one reader that may be under way at once.
AT_ONCE_MAX = 16
# An answer in columns is a batch of its own; records of small answers are put together into larger ones.
COLUMNS_ROWS_MIN = 1_024
# Of what rows of the size so far would fit into an answer, this part is asked for: sizes differ.
ROOM_USED = 0.9
# Answers with fewer rows are limited by other rules of the broker's, as RocketMQ's are: nothing is guessed then ...
GUESSED_ROWS_MIN = 128
# ... nor after so many guesses that were wrong, each of which costs an answer that nobody wants.
WRONG_MAX = 3


@dataclass(slots=True, eq=False)
class _Asked:
    """A pull on its way, by the number it has on its connection; without one, it is asked for in its turn."""

    # Which of the ranges it is of; they may overlap.
    range: int
    queue: QueueId
    offset: int
    end: int
    rows: int
    columns: Sequence[str] = ()
    # Where the one behind it begins, if it is answered in full; 0 if that cannot be told.
    following: int = 0
    # Whether it was asked for before it was known that it begins where the one before ends.
    is_guess: bool = False
    socket: PullSocket | None = None
    opaque: int = 0
    command: Command | None = None


class ReadAhead:
    """See the module's text. True while there is an answer to come; `close` when done, also before the end."""

    def __init__(
        self,
        thread: LoopThread,
        scan: AsyncScan,
        ranges: Sequence[QueueRange],
        rows: int,
        size: int,
        tags: str,
        columns: Sequence[str] = (),
    ) -> None:
        self._thread = thread
        self._scan = scan
        self._rows, self._size, self._tags, self._columns = rows, size, tags, columns
        self._waiting = deque(ranges)
        self._coming: deque[_Asked] = deque()
        self._rows_coming = 0
        self._wrong = 0
        # One connection for each address; None where there was none to be had, which is not tried at every pull.
        self._sockets: dict[str, PullSocket | None] = {}
        self._range = 0
        thread.check_may_wait()
        self._fill()

    def __bool__(self) -> bool:
        return bool(self._coming)

    def next(self) -> Pulled:
        """The next answer; what follows it has been asked for."""
        self._thread.check_process()
        asked = self._coming.popleft()
        self._rows_coming -= asked.rows
        return self._received(asked) or self._pulled_surely(asked)

    def close(self) -> None:
        """Give the connections back. In a child process they are the parent's, and left alone."""
        sockets, self._sockets = self._sockets, {}
        self._coming.clear()
        if self._thread.is_foreign:
            return
        for used in sockets.values():
            if used is not None:
                self._scan.sockets.give_back(used)

    # -- asking ----------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Begin other ranges, where what is on its way is little."""
        while self._waiting and len(self._coming) < AT_ONCE_MAX:
            if self._coming and self._rows_coming >= self._rows:
                return
            queue, start, end = self._waiting.popleft()
            self._range += 1
            self._coming.append(self._ask(self._range, queue, start, end, self._rows))

    def _follow(self, pulled: Pulled, asked: _Asked, size: int) -> None:
        """Ask for what comes behind an answer of so many bytes: the rest of its range, or others."""
        if asked.columns and pulled.status is PullStatus.FOUND and not pulled.columns:
            # A broker that has none, or bodies that are packed, which it finds out at half of its work.
            self._columns = ()
        guessed = self._guess_behind(asked)
        if guessed is not None and guessed.offset != pulled.next_offset:
            self._forget(guessed)
            self._wrong += 1
            guessed = None
        if guessed is not None:
            guessed.is_guess = False
        elif pulled.offset < pulled.next_offset < asked.end:
            rows = self._rows_that_fit(pulled, size)
            guessed = self._ask(asked.range, pulled.queue, pulled.next_offset, asked.end, rows or self._rows)
            guessed.following = guessed.offset + rows if rows else 0
            self._coming.appendleft(guessed)
        if guessed is not None and pulled.next_offset < guessed.following < asked.end:
            behind = self._ask(asked.range, guessed.queue, guessed.following, asked.end, guessed.rows)
            behind.following = behind.offset + behind.rows
            behind.is_guess = True
            self._coming.insert(1, behind)
        self._fill()

    def _rows_that_fit(self, pulled: Pulled, size: int) -> int:
        """How many rows to ask for so that they come in one answer; 0 where that cannot be told."""
        rows = pulled.next_offset - pulled.offset
        if self._tags or rows < GUESSED_ROWS_MIN or self._wrong >= WRONG_MAX:
            return 0
        return min(self._rows, int(self._size * ROOM_USED * rows / max(size, 1)))

    def _guess_behind(self, asked: _Asked) -> _Asked | None:
        first = self._coming[0] if self._coming else None
        return first if first is not None and first.is_guess and first.range == asked.range else None

    def _forget(self, asked: _Asked) -> None:
        """Its answer, should it come, is for nobody."""
        self._coming.remove(asked)
        self._rows_coming -= asked.rows
        if asked.socket is not None:
            asked.socket.forget(asked.opaque)

    def _ask(self, number: int, queue: QueueId, offset: int, end: int, rows: int) -> _Asked:
        columns = self._columns if min(self._rows, end - offset) >= COLUMNS_ROWS_MIN else ()
        asked = _Asked(number, queue, offset, end, min(rows, end - offset), columns)
        self._rows_coming += asked.rows
        used = self._socket(queue.address)
        if used is not None:
            command = pull_command(queue, offset, asked.rows, self._size, self._tags, asked.columns)
            try:
                asked.opaque = used.ask(self._prepared(queue.address, command))
                asked.command = command
                asked.socket = used
            except PenstockError:
                self._drop(used)
        return asked

    def _prepared(self, address: str, command: Command) -> Command:
        """Hooks belong to the event loop."""
        return self._thread.run(self._scan.prepared(address, command)) if self._scan.has_hook else command

    def _socket(self, address: str) -> PullSocket | None:
        if not address:
            return None
        if address not in self._sockets:
            try:
                self._sockets[address] = self._scan.sockets.borrow(address)
            except ConnectError:
                self._sockets[address] = None
        return self._sockets[address]

    def _drop(self, used: PullSocket) -> None:
        """It failed: what was asked for through it is asked for again, and the next pull may try a new one."""
        if self._sockets.get(used.address) is used:
            del self._sockets[used.address]
        for asked in self._coming:
            if asked.socket is used:
                asked.socket = None
        self._scan.sockets.failed(used)

    # -- receiving -------------------------------------------------------------------------------------------

    def _received(self, asked: _Asked) -> Pulled | None:
        """The answer, with what follows it asked for; None if it has to be asked for again."""
        used = asked.socket
        if used is None:
            return None
        try:
            answer, size = used.head(asked.opaque)
            if asked.command is not None:
                self._scan.answered(asked.queue.address, asked.command, answer)
            try:
                place = pulled_of(asked.queue, asked.offset, answer)
            except PenstockError:
                used.body(answer)  # an error code: the connection is as good as before
                return None
            self._follow(place, asked, place.stored_bytes or size)
            return replace(place, data=used.body(answer).body)
        except PenstockError:
            self._drop(used)
            return None

    def _pulled_surely(self, asked: _Asked) -> Pulled:
        # What was asked for behind it depends on an answer that did not come.
        for behind in [item for item in self._coming if item.range == asked.range]:
            self._forget(behind)
        self._scan.sockets.check_open()
        pull = self._scan.pull(
            *(asked.queue, asked.offset),
            rows=asked.rows,
            size=self._size,
            tags=self._tags,
            columns=asked.columns,
        )
        pulled = self._thread.run(pull)
        address = pulled.queue.address
        if address in self._sockets and self._sockets[address] is None:
            del self._sockets[address]  # it answers by now
        self._follow(pulled, asked, pulled.stored_bytes or len(pulled.data))
        return pulled
