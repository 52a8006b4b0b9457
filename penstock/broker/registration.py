"""Keeps every name server told of this broker and its topics.

Rules. Each name server has a task of its own, so that one that hangs or fails never delays another. It is told
everything every 30 s, and at once when something changes: after a full registration only the topics that
changed, else everything. A failure is logged once and tried again, soon at first and then less often; a
connection that breaks is a reason to register anew. Stopping unregisters. Owned by the event loop; whether
anybody is registered never decides whether the broker works.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from penstock.broker.options import BrokerOptions
from penstock.broker.topics import Topics
from penstock.errors import CodecError, PenstockError
from penstock.message import HostAddress
from penstock.metadata.config_files import DataVersion
from penstock.metadata.topic_table import Permission, TopicConfig
from penstock.protocol.bodies import (
    ClusterInfo,
    KVTable,
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
    body_crc32,
)
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnregisterBrokerRequestHeader,
)
from penstock.remoting import Connection, RemotingClient, RemotingOptions, RpcHook, TlsOptions, check
from penstock.runtime import Runtime

_LOG = logging.getLogger("penstock.broker")
# A name server that comes back knows nobody; whoever asks it meanwhile waits for this.
RETRY_FIRST_MS, RETRY_MAX_MS = 500, 5_000
UNREGISTER_TIMEOUT_MS = 1_000
ASIDE_FROM = 500
_EVERYWHERE = ("0.0.0.0", "::", "")


@dataclass(slots=True)
class NameServerLink:
    """What one name server has been told."""

    address: str
    wake: asyncio.Event
    # Topics changed since it was last told; None where it has to be told everything.
    changed: dict[str, TopicConfig] | None = None
    # Under which address the broker is registered there; empty if it is not.
    registered_as: str = ""
    # The same, from the moment that the request leaves: it may be registered there without our knowing yet.
    sent_as: str = ""
    failures: int = 0
    trouble: str = ""
    connection: Connection | None = None

    @property
    def is_registered(self) -> bool:
        return bool(self.registered_as)


class Registration:
    """See the module's text. `listening` says where the broker listens, once it does; `ha_port` where replicas do."""

    def __init__(
        self,
        options: BrokerOptions,
        runtime: Runtime,
        topics: Topics,
        listening: Callable[[], HostAddress],
        *,
        ha_port: Callable[[], int] | None = None,
        remoting: RemotingOptions | None = None,
        tls: TlsOptions | None = None,
        hook: RpcHook | None = None,
    ) -> None:
        self._options = options
        self._clock = runtime.clock
        self._topics = topics
        self._listening = listening
        self._ha_port = ha_port or (lambda: listening().port + 1)
        # Told what a name server answered: a slave finds its master in it.
        self.on_answer: list[Callable[[RegisterBrokerResponseHeader], None]] = []
        self.client = RemotingClient(
            runtime=runtime, options=remoting, tls=tls, on_close=self._lost, hook=hook
        )
        self._links: list[NameServerLink] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        # The encoded full registration, and the version of the topics in it: the same for all name servers.
        self._encoded: tuple[DataVersion, bytes] | None = None

    # -- lifecycle -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to register; the first attempts are made at once."""
        self._stopping = False
        self._links = [NameServerLink(address, asyncio.Event()) for address in self._options.name_servers]
        self._topics.on_change.append(self._topic_changed)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._keep(link), name=f"register with {link.address}") for link in self._links
        ]

    async def stop(self) -> None:
        """Unregister everywhere, each name server within its time, and end."""
        self._stopping = True
        if self._topic_changed in self._topics.on_change:
            self._topics.on_change.remove(self._topic_changed)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await asyncio.gather(*(self._unregister(link) for link in self._links if link.sent_as))
        await self.client.close()

    async def register_all(self) -> dict[str, bool]:
        """Tell every name server everything, now and side by side; who took it. Empty without name servers."""
        outcomes = await asyncio.gather(*(self._register(link, None) for link in self._links))
        return {link.address: taken for link, taken in zip(self._links, outcomes, strict=True)}

    async def wait_registered(self, timeout_ms: int) -> bool:
        """Whether every name server knows the broker before the time is over."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while not all(link.is_registered for link in self._links):
            if self._clock.monotonic_ms() >= deadline_ms:
                return False
            await asyncio.sleep(0.002)
        return True

    @property
    def links(self) -> tuple[NameServerLink, ...]:
        """The name servers and what they have been told."""
        return tuple(self._links)

    async def ask(self, request: Command) -> Command | None:
        """The answer of the first name server that gives one; None if none does."""
        for link in sorted(self._links, key=lambda link: link.failures):
            answer = await self._ask(link, request)
            if answer is not None:
                return answer
        return None

    async def _ask(self, link: NameServerLink, request: Command) -> Command | None:
        timeout_ms = self._options.register_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                connection = await self.client.connection(link.address)
                return await connection.call(request, timeout_ms)
        except (PenstockError, TimeoutError) as error:
            _LOG.debug("name server %s does not answer: %s", link.address, error)
            return None

    async def broker_names(self) -> Collection[str] | None:
        """The brokers that any name server knows; None if none answers."""
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        answers = await asyncio.gather(*(self._ask(link, Command(code)) for link in self._links))
        known = [answer for answer in answers if answer is not None and answer.code == ResponseCode.SUCCESS]
        names = (ClusterInfo.decode(answer.body).broker_addr_table for answer in known)
        return {name for found in names for name in found} if known else None

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options and tell everybody; the list of name servers stays what it was at the start."""
        self._options = options
        self._encoded = None
        self.hurry()

    def hurry(self) -> None:
        """Tell everybody everything soon; whoever does not answer is asked at its own pace."""
        for link in self._links:
            link.changed = None
            link.wake.set()

    # -- reasons to register ---------------------------------------------------------------------------------

    def _topic_changed(self, config: TopicConfig | None) -> None:
        for link in self._links:
            if config is None:
                link.changed = None
            elif link.changed is not None:
                link.changed[config.name] = config
            link.wake.set()

    def _lost(self, connection: Connection) -> None:
        """A name server that closed the connection has forgotten the broker, or is gone."""
        for link in self._links:
            if link.connection is connection and not self._stopping:
                link.connection = None
                link.registered_as = link.sent_as = ""
                link.changed = None
                link.wake.set()

    async def _keep(self, link: NameServerLink) -> None:
        """The task of one name server."""
        options = self._options
        due_ms = 0
        while True:
            link.wake.clear()
            is_due = self._clock.monotonic_ms() >= due_ms
            changed, link.changed = (None if is_due else link.changed), {}
            if changed is None or changed:
                is_full = changed is None or not link.is_registered
                if await self._register(link, None if is_full else changed):
                    if is_full:
                        due_ms = self._clock.monotonic_ms() + options.register_interval_ms
                else:
                    link.changed = None
            await self._wait(link, due_ms)

    async def _wait(self, link: NameServerLink, due_ms: int) -> None:
        """Until something changes or the next round is due; after failures longer each time, whatever changes."""
        if link.failures:
            longest_ms = min(RETRY_MAX_MS, self._options.register_interval_ms)
            pause_ms = min(RETRY_FIRST_MS << min(link.failures - 1, 10), longest_ms)
            await asyncio.sleep(pause_ms / 1000)
            return
        left_ms = due_ms - self._clock.monotonic_ms()
        try:
            async with asyncio.timeout(max(left_ms, 0) / 1000):
                await link.wake.wait()
        except TimeoutError:
            pass

    # -- registering -----------------------------------------------------------------------------------------

    async def _register(self, link: NameServerLink, changed: dict[str, TopicConfig] | None) -> bool:
        """Register everything, or only the topics given; whether the name server took it."""
        try:
            async with asyncio.timeout(self._options.register_timeout_ms / 1000):
                connection = await self.client.connection(link.address)
                link.connection = connection
                address = self._address_for(connection)
                if changed is None:
                    data = await self._full_body()
                else:
                    data = await self._encode(changed, self._topics.data_version)
                request = self._request(address, data)
                link.sent_as = address
                response = check(await connection.call(request, self._options.register_timeout_ms))
        except TimeoutError:
            self._failed(link, f"no answer within {self._options.register_timeout_ms} ms")
            self.client.drop(link.address)  # what it answers later belongs to nothing
            return False
        except PenstockError as error:
            self._failed(link, str(error))
            return False
        except Exception as error:
            _LOG.exception("registering with name server %s failed", link.address)
            self._failed(link, repr(error))
            return False
        if link.failures or not link.is_registered:
            _LOG.info("registered with name server %s as %s", link.address, address)
        else:
            _LOG.debug("registered with name server %s", link.address)
        link.registered_as, link.failures, link.trouble = address, 0, ""
        self._take_order(response)
        self._take_master(response)
        return True

    def _failed(self, link: NameServerLink, reason: str) -> None:
        link.failures += 1
        link.registered_as = link.sent_as = ""
        if reason != link.trouble:  # once for each trouble, not once for each attempt
            _LOG.warning("cannot register with name server %s: %s", link.address, reason)
        link.trouble = reason

    def _address_for(self, connection: Connection) -> str:
        """Where clients of this name server reach the broker: as advertised, else as listening; a broker that
        listens everywhere is reached where it reaches the name server from. Beside a name server on the same
        machine that would lead nobody else here, so it says "everywhere", and each client is given the address
        under which it reached the name server."""
        listening = self._listening()
        ip = listening.ip
        if ip in _EVERYWHERE and not ipaddress.ip_address(connection.local.ip).is_loopback:
            ip = connection.local.ip
        return self._options.advertise(ip or "0.0.0.0", listening.port)

    def _request(self, address: str, data: bytes) -> Command:
        options = self._options
        host = address.rpartition(":")[0]
        header = RegisterBrokerRequestHeader(
            broker_name=options.broker_name,
            broker_addr=address,
            cluster_name=options.cluster_name,
            ha_server_addr=f"{host}:{self._ha_port()}",
            broker_id=options.broker_id,
            compressed=options.compressed_register,
            body_crc32=body_crc32(data),
        )
        return Command(RequestCode.REGISTER_BROKER, header.encode(), data, language="JAVA")

    async def _full_body(self) -> bytes:
        if self._encoded is None or self._encoded[0] != self._topics.data_version:
            version = self._topics.data_version
            self._encoded = version, await self._encode(dict(self._topics.all()), version)
        return self._encoded[1]

    async def _encode(self, topics: Mapping[str, TopicConfig], version: DataVersion) -> bytes:
        """In a thread where it is large, so that it does not hold up the loop."""
        if len(topics) < ASIDE_FROM:
            return self._body(topics, version)
        return await asyncio.to_thread(self._body, topics, version)

    def _body(self, topics: Mapping[str, TopicConfig], version: DataVersion) -> bytes:
        if self._options.permission & 6 != 6:
            allowed = Permission(self._options.permission)
            topics = {name: replace(config, perm=config.perm & allowed) for name, config in topics.items()}
        body = RegisterBrokerBody(TopicConfigSerializeWrapper(version, topics))
        return body.encode_compressed() if self._options.compressed_register else body.encode()

    def _take_order(self, response: Command) -> None:
        """Topics that the name server keeps an order configuration of are ordered topics here."""
        if not response.body:
            return
        try:
            names = KVTable.decode(response.body).table
        except CodecError as error:
            _LOG.warning("a name server answered with an unreadable order configuration: %s", error)
            return
        for name in names:
            config = self._topics.get(name)
            if config is not None and not config.order:
                self._topics.update(replace(config, order=True))

    def _take_master(self, response: Command) -> None:
        if self.on_answer:
            try:
                header = RegisterBrokerResponseHeader.decode(response.fields)
            except PenstockError as error:
                _LOG.warning("a name server answered with something unreadable: %s", error)
                return
            for listener in self.on_answer:
                listener(header)

    async def _unregister(self, link: NameServerLink) -> None:
        header = UnregisterBrokerRequestHeader(
            broker_name=self._options.broker_name,
            broker_addr=link.sent_as,
            cluster_name=self._options.cluster_name,
            broker_id=self._options.broker_id,
        )
        request = Command(RequestCode.UNREGISTER_BROKER, header.encode(), language="JAVA")
        link.registered_as = link.sent_as = ""
        try:
            async with asyncio.timeout(UNREGISTER_TIMEOUT_MS / 1000):
                check(await self.client.call(link.address, request, UNREGISTER_TIMEOUT_MS))
        except (PenstockError, TimeoutError) as error:
            _LOG.warning("cannot unregister from name server %s: %s", link.address, error)
