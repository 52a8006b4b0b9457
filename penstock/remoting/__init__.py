"""Frames over sockets: connections that carry requests both ways, servers and clients of them."""

from penstock.remoting.client import RemotingClient
from penstock.remoting.connection import Connection, FastPath
from penstock.remoting.hooks import RpcHook
from penstock.remoting.options import RemotingOptions
from penstock.remoting.processors import Handler, ProcessorTable, RequestGuard, check
from penstock.remoting.server import RemotingServer
from penstock.remoting.tls import TlsMode, TlsOptions

__all__ = [
    "Connection",
    "FastPath",
    "Handler",
    "ProcessorTable",
    "RemotingClient",
    "RemotingOptions",
    "RemotingServer",
    "RequestGuard",
    "RpcHook",
    "TlsMode",
    "TlsOptions",
    "check",
]
