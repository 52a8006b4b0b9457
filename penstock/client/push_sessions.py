"""Being called by brokers: over which connections this client is registered, and who takes what they deliver.

    register    once for each connection (9040); after it the broker may call over it, and never over another
    deliver     9046 goes to the loop that subscribed to the queue; without one it is answered with 206
    ping        9047 is answered; if the broker has parked something of ours, it is told to go on (9044)
    lost        whoever subscribed over a connection that is gone begins anew over the next
    leave       the last consumer that is pushed to closes the registration (9043)

Shared by the consumers of a client instance, as its connections are. Belongs to the instance's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from penstock.errors import PenstockError, ResponseError
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.push import (
    PushPingRequestHeader,
    PushRegisterRequestHeader,
    PushResumeRequestHeader,
)
from penstock.remoting import Connection, check

if TYPE_CHECKING:
    from penstock.client.instance import ClientInstance

logger = logging.getLogger(__name__)
_SESSION, _REFUSED = "push_session", "push_refused"
_Key = tuple[int, str, str, int]


class Receiver(Protocol):
    """Who takes the deliveries of one queue."""

    def deliver(self, command: Command) -> Command | None:
        """Take what was delivered, or what is said about the subscription; the answer."""

    def pinged(self) -> None:
        """The broker is there, and has nothing more to send."""

    def lost(self) -> None:
        """The connection is gone."""


class PushSessions:
    """See the module's text."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._receivers: dict[_Key, Receiver] = {}
        self._connections: dict[int, Connection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        instance.table.register(RequestCode.PUSH_DELIVER, self._deliver)
        instance.table.register(RequestCode.PUSH_PING, self._ping)

    # -- registering -----------------------------------------------------------------------------------------

    async def register(self, connection: Connection) -> None:
        """Have the broker call us over this connection; nothing if it does. Raises PenstockError."""
        asking: asyncio.Task[None] | None = connection.attributes.get(_SESSION)
        if asking is None or (asking.done() and (asking.cancelled() or asking.exception() is not None)):
            asking = asyncio.ensure_future(self._ask(connection))
            connection.attributes[_SESSION] = asking
        await asyncio.shield(asking)

    async def _ask(self, connection: Connection) -> None:
        header = PushRegisterRequestHeader(client_id=self._instance.client_id)
        command = Command(RequestCode.PUSH_REGISTER, header.encode())
        answer = await connection.call(command, self._instance.options.call_timeout_ms)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            if not connection.attributes.setdefault(_REFUSED, False):
                connection.attributes[_REFUSED] = True  # once for each connection, however often it is asked
                logger.warning("%s does not push; consumers of its queues get nothing", connection.peer)
            why = f"the broker at {connection.peer} does not push"
            raise ResponseError(answer.code, why, 'consume with delivery="pull"')
        check(answer)
        self._connections[connection.id] = connection

    def forget(self, connection: Connection) -> None:
        """The broker does not know us: the next subscription registers again."""
        connection.attributes.pop(_SESSION, None)

    # -- receivers -------------------------------------------------------------------------------------------

    def attach(self, connection: Connection, group: str, queue: MessageQueue, receiver: Receiver) -> None:
        """What is delivered of a queue goes to this one, and to nobody who had it before."""
        self._receivers[connection.id, group, queue.topic, queue.queue_id] = receiver

    def detach(self, connection: Connection, group: str, queue: MessageQueue, receiver: Receiver) -> bool:
        """Whether it was still this one's."""
        key = (connection.id, group, queue.topic, queue.queue_id)
        if self._receivers.get(key) is not receiver:
            return False
        del self._receivers[key]
        return True

    def _deliver(self, connection: Connection, command: Command) -> Command | None:
        group, topic = command.text_or("consumerGroup"), command.text_or("topic")
        receiver = self._receivers.get((connection.id, group, topic, command.integer("queueId", 0)))
        if receiver is None:
            why = f"nobody here has subscribed to {topic[:80]!r} as {group[:80]!r}"
            return command.answer(ResponseCode.CONSUMER_NOT_ONLINE, why)
        return receiver.deliver(command)

    def lost(self, connection: Connection) -> None:
        """A connection is gone, with the registration and the subscriptions that were made over it."""
        self._connections.pop(connection.id, None)
        for key in [key for key in self._receivers if key[0] == connection.id]:
            self._receivers[key].lost()

    # -- pings -----------------------------------------------------------------------------------------------

    def _ping(self, connection: Connection, command: Command) -> Command:
        header = PushPingRequestHeader.decode(command.fields)
        mine = [key for key in self._receivers if key[0] == connection.id]
        for key in mine:
            self._receivers[key].pinged()
        if header.parked > 0:
            for group in {group for _, group, _, _ in mine}:
                logger.warning(
                    "%s has parked messages of group %s; it is told to go on", connection.peer, group
                )
                self._spawn(connection, group)
        return command.answer()

    # -- going on --------------------------------------------------------------------------------------------

    def resume(self, group: str) -> None:
        """Have every broker go on with what it has parked for this client."""
        for number in {number for number, of, _, _ in self._receivers if of == group}:
            connection = self._connections.get(number)
            if connection is not None:
                self._spawn(connection, group)

    def _spawn(self, connection: Connection, group: str) -> None:
        task = asyncio.ensure_future(self._resume(connection, group))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _resume(self, connection: Connection, group: str) -> None:
        header = PushResumeRequestHeader(consumer_group=group, client_id=self._instance.client_id)
        command = Command(RequestCode.PUSH_RESUME, header.encode())
        try:
            check(await connection.call(command, self._instance.options.call_timeout_ms))
        except PenstockError as error:
            logger.info("resuming group %s at %s: %s", group, connection.peer, error)

    # -- leaving ---------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """A consumer has given its queues up: brokers that push nothing more to us may forget us."""
        used = {number for number, _, _, _ in self._receivers}
        gone = [connection for number, connection in self._connections.items() if number not in used]
        for connection in gone:
            self._connections.pop(connection.id, None)
            self.forget(connection)
        await asyncio.gather(*map(self._close, gone))

    async def _close(self, connection: Connection) -> None:
        try:
            await connection.call(Command(RequestCode.PUSH_CLOSE), self._instance.options.call_timeout_ms)
        except PenstockError as error:
            logger.info("closing at %s: %s", connection.peer, error)
