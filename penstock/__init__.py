"""Penstock: a message queue in Python, wire- and store-compatible with Apache RocketMQ.

    with penstock.Producer("127.0.0.1:9876", group="orders") as producer:
        producer.send("T", b"hello")

This is the only public door: what is not named in `__all__` may change without notice. A name is imported when
it is first used, so that `import penstock` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.client.admin import Admin, AsyncAdmin
    from penstock.client.allocation import ConsistentHash, FixedQueues, MachineRoom, RoomNearby
    from penstock.client.consumer import AsyncConsumer, Consumer
    from penstock.client.options import Durability
    from penstock.client.producer import AsyncProducer, Producer
    from penstock.client.received import DEAD_LETTER, RETRY, ReceivedMessage, Retry
    from penstock.client.request_reply import Reply
    from penstock.client.results import SendResult, SendStatus
    from penstock.client.service_state import ServiceState
    from penstock.client.transactions import (
        AsyncTransaction,
        Transaction,
        TransactionListener,
        TransactionState,
    )
    from penstock.errors import (
        BufferFullError,
        CallTimeoutError,
        ClientClosedError,
        ClientError,
        ConnectError,
        ConnectionLostError,
        MessageError,
        OptionError,
        PenstockError,
        ReplyTimeoutError,
        ResponseError,
        RouteNotFoundError,
        SendError,
        SendFailedError,
        SendUnknownError,
    )
    from penstock.message import Message
    from penstock.protocol.bodies.queues import MessageQueue
    from penstock.remoting import RpcHook, TlsOptions

__version__ = "0.1.0"

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncTransaction",
    "BufferFullError",
    "CallTimeoutError",
    "ClientClosedError",
    "ClientError",
    "ConnectError",
    "ConnectionLostError",
    "ConsistentHash",
    "Consumer",
    "DEAD_LETTER",
    "Durability",
    "FixedQueues",
    "MachineRoom",
    "Message",
    "MessageError",
    "MessageQueue",
    "OptionError",
    "PenstockError",
    "Producer",
    "RETRY",
    "ReceivedMessage",
    "Reply",
    "ReplyTimeoutError",
    "ResponseError",
    "Retry",
    "RoomNearby",
    "RouteNotFoundError",
    "RpcHook",
    "SendError",
    "SendFailedError",
    "SendResult",
    "SendStatus",
    "SendUnknownError",
    "ServiceState",
    "TlsOptions",
    "Transaction",
    "TransactionListener",
    "TransactionState",
    "__version__",
]

_HOMES = {
    "Admin": "penstock.client.admin",
    "AsyncAdmin": "penstock.client.admin",
    "AsyncConsumer": "penstock.client.consumer",
    "AsyncProducer": "penstock.client.producer",
    "AsyncTransaction": "penstock.client.transactions",
    "ConsistentHash": "penstock.client.allocation",
    "Consumer": "penstock.client.consumer",
    "DEAD_LETTER": "penstock.client.received",
    "Durability": "penstock.client.options",
    "FixedQueues": "penstock.client.allocation",
    "MachineRoom": "penstock.client.allocation",
    "Message": "penstock.message",
    "MessageQueue": "penstock.protocol.bodies.queues",
    "Producer": "penstock.client.producer",
    "RETRY": "penstock.client.received",
    "ReceivedMessage": "penstock.client.received",
    "Reply": "penstock.client.request_reply",
    "Retry": "penstock.client.received",
    "RoomNearby": "penstock.client.allocation",
    "RpcHook": "penstock.remoting",
    "SendResult": "penstock.client.results",
    "SendStatus": "penstock.client.results",
    "ServiceState": "penstock.client.service_state",
    "TlsOptions": "penstock.remoting",
    "Transaction": "penstock.client.transactions",
    "TransactionListener": "penstock.client.transactions",
    "TransactionState": "penstock.client.transactions",
}


def __getattr__(name: str) -> Any:
    """PEP 562: import a public name when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES.get(name, "penstock.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
