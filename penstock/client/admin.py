"""Administration for programs without an event loop: `AsyncAdmin`, method for method.

    with penstock.Admin("127.0.0.1:9876") as admin:
        admin.create_topic("T", queues=8)
        print(admin.describe_topic("T").messages)

May be used from any thread but the client's own.
"""

from __future__ import annotations

import threading
from collections.abc import Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from penstock.client.admin_dead_letters import DeadLetters
from penstock.client.admin_results import ClusterStatus, GroupDescription, TimersWaiting, TopicDescription
from penstock.client.async_admin import READ_WRITE, AdminSettings, AsyncAdmin
from penstock.client.key_reading import KeyedValues
from penstock.client.loop_thread import LoopThread
from penstock.client.options import DEFAULT_NAME_SERVER
from penstock.client.received import ReceivedMessage
from penstock.client.routes import MessageQueue
from penstock.client.service_state import OneProcess
from penstock.client.trace_records import TRACE_TOPIC, TraceRecord
from penstock.errors import ClientClosedError
from penstock.metadata.group_table import GroupRetryPolicy
from penstock.protocol.bodies.push import PushListBody, PushResumed
from penstock.remoting import RpcHook, TlsOptions
from penstock.runtime import Runtime

__all__ = ["Admin", "AsyncAdmin"]

T = TypeVar("T")


class Admin(OneProcess):
    """An admin client for threads. `with` starts and closes it; the first call starts it, too."""

    def __init__(
        self,
        name_servers: str | Iterable[str] = DEFAULT_NAME_SERVER,
        *,
        runtime: Runtime | None = None,
        tls: TlsOptions | None = None,
        rpc_hook: RpcHook | None = None,
        **settings: Unpack[AdminSettings],
    ) -> None:
        self._async = AsyncAdmin(name_servers, runtime=runtime, tls=tls, rpc_hook=rpc_hook, **settings)
        self._thread: LoopThread | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    # -- life ------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Connect to a name server. Called by the first call, too."""
        self._started()
        return self

    def _started(self) -> LoopThread:
        with self._lock:
            if self._is_closed:
                raise ClientClosedError("the admin client is closed", "make a new one")
            if self._thread is None:
                thread = LoopThread.acquire()
                try:
                    thread.run(self._async.start())
                except BaseException:
                    thread.release()
                    raise
                self._thread = thread
            return self._thread

    def close(self) -> None:
        """Leave the cluster."""
        with self._lock:
            self._is_closed = True
            thread, self._thread = self._thread, None
        if thread is not None and not thread.is_foreign:
            try:
                thread.run(self._async.close())
            finally:
                thread.release()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            thread = self._started()
        except BaseException:
            coroutine.close()
            raise
        return thread.run(coroutine)

    # -- topics ----------------------------------------------------------------------------------------------

    def create_topic(
        self,
        topic: str,
        queues: int = 4,
        *,
        permission: int = READ_WRITE,
        cluster: str = "",
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        shrink: bool = False,
    ) -> None:
        """Create a topic at every broker, or change the one that is there; see `AsyncAdmin.create_topic`."""
        self._run(
            self._async.create_topic(
                topic,
                queues,
                permission=permission,
                cluster=cluster,
                order=order,
                attributes=attributes,
                shrink=shrink,
            )
        )

    def list_topics(self, *, internal: bool = False) -> list[str]:
        """Names of all topics; with `internal` also those that the system made for itself."""
        return self._run(self._async.list_topics(internal=internal))

    def describe_topic(self, topic: str) -> TopicDescription:
        """A topic's queues with their offsets. RouteNotFoundError if it does not exist."""
        return self._run(self._async.describe_topic(topic))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages, everywhere. RouteNotFoundError if it does not exist."""
        self._run(self._async.delete_topic(topic))

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read."""
        return self._run(self._async.queues(topic))

    def write_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be sent to."""
        return self._run(self._async.write_queues(topic))

    def groups_of_topic(self, topic: str) -> list[str]:
        """Groups that subscribe to a topic, or have consumed from it."""
        return self._run(self._async.groups_of_topic(topic))

    # -- groups and offsets ----------------------------------------------------------------------------------

    def create_group(
        self,
        group: str,
        *,
        retry_max_times: int = 16,
        orderly: bool = False,
        retry_queues: int = 1,
        retry_policy: GroupRetryPolicy | None = None,
    ) -> None:
        """Create a consumer group at every broker, or change the one that is there. The policy says how long a
        message waits for its next try; without one, the broker's delay levels do, from the third on."""
        self._run(
            self._async.create_group(
                group,
                retry_max_times=retry_max_times,
                orderly=orderly,
                retry_queues=retry_queues,
                retry_policy=retry_policy,
            )
        )

    def list_groups(self, *, internal: bool = False) -> list[str]:
        """Names of all consumer groups; with `internal` also those of the system's own tools."""
        return self._run(self._async.list_groups(internal=internal))

    def describe_group(self, group: str) -> GroupDescription:
        """A group's members, subscriptions and progress."""
        return self._run(self._async.describe_group(group))

    def push_clients(self, group: str = "") -> dict[str, PushListBody]:
        """Who is pushed to, by broker: all clients, or those of a group, with what is unanswered and parked."""
        return self._run(self._async.push_clients(group))

    def resume_push(self, group: str = "", client: str = "") -> dict[str, tuple[PushResumed, ...]]:
        """Have deliveries go on that are parked or held: of a group, of a client, or of a client in a group. What
        became of each, by broker."""
        return self._run(self._async.resume_push(group, client))

    def delete_group(self, group: str, *, offsets: bool = True) -> None:
        """Forget a group, and its offsets too unless told otherwise."""
        self._run(self._async.delete_group(group, offsets=offsets))

    def offsets(self, group: str, topic: str = "") -> dict[MessageQueue, int]:
        """The group's committed offsets."""
        return self._run(self._async.offsets(group, topic))

    def commit_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Set a group's offset in one queue; consumers that are online go on where they are."""
        self._run(self._async.commit_offset(group, queue, offset))

    def reset_offsets(
        self,
        group: str,
        topic: str,
        to: str | int = "first",
        *,
        offsets: Mapping[MessageQueue, int] | None = None,
    ) -> dict[MessageQueue, int]:
        """Move a group, also while it is online: to the `first` or `last` message, to a time in milliseconds, or
        to the `offsets` given. Returns where each queue goes on."""
        return self._run(self._async.reset_offsets(group, topic, to, offsets=offsets))

    def min_offset(self, queue: MessageQueue) -> int:
        """The oldest offset that is still there."""
        return self._run(self._async.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        return self._run(self._async.max_offset(queue))

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset that was stored at that time or later."""
        return self._run(self._async.offset_at(queue, timestamp_ms))

    # -- messages --------------------------------------------------------------------------------------------

    def get_message(self, msg_id: str, topic: str = "") -> ReceivedMessage:
        """The message with this id, either kind of id. Naming the topic makes it quick for the producer's ids."""
        return self._run(self._async.get_message(msg_id, topic))

    def query_messages(
        self, topic: str, key: str, *, limit: int = 32, begin_ms: int = 0, end_ms: int = 2**63 - 1
    ) -> list[ReceivedMessage]:
        """Messages of a topic with this key, oldest first."""
        return self._run(
            self._async.query_messages(topic, key, limit=limit, begin_ms=begin_ms, end_ms=end_ms)
        )

    def read_by_key(self, topic: str, key: str, *, limit: int = 32, whole: bool = False) -> KeyedValues:
        """The newest values of a key, at most 64, from the partition that a producer with `partition_by_key` sends it
        to; with `whole` all of them up to the limit, for which the broker goes through the partition."""
        return self._run(self._async.read_by_key(topic, key, limit=limit, whole=whole))

    def read_messages(self, queue: MessageQueue, offset: int, *, limit: int = 32) -> list[ReceivedMessage]:
        """Messages of a queue from an offset on, without being a consumer."""
        return self._run(self._async.read_messages(queue, offset, limit=limit))

    def trace_message(
        self, msg_id: str, *, trace_topic: str = TRACE_TOPIC, limit: int = 256
    ) -> list[TraceRecord]:
        """The life of a message, as far as its clients write traces; by its producer's id."""
        return self._run(self._async.trace_message(msg_id, trace_topic=trace_topic, limit=limit))

    def recall_message(self, handle: str) -> str:
        """Take back a message that waits for its time; its id. `handle` is what its send gave (`recall_handle`)."""
        return self._run(self._async.recall_message(handle))

    def timers_waiting(self) -> list[TimersWaiting]:
        """How many messages wait for their time: by broker, topic, and how long from now."""
        return self._run(self._async.timers_waiting())

    @property
    def dead_letters(self) -> DeadLetters:
        """Dead letters: counted by reason, read, and sent again."""
        return DeadLetters(self._async.dead_letters, self._run)

    # -- health ----------------------------------------------------------------------------------------------

    def cluster_status(self) -> ClusterStatus:
        """Who is there and how they are; whoever does not answer is listed with the reason."""
        return self._run(self._async.cluster_status())

    def broker_config(self, broker_name: str) -> dict[str, str]:
        """A broker's configuration, as it tells it."""
        return self._run(self._async.broker_config(broker_name))
