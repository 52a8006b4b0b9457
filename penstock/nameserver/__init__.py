"""The name server: which broker has which topic, where it is, and whether it lives.

Rule: everything but the KV config is what brokers said lately; a name server that starts knows nothing, and
several side by side never talk to each other.
"""

from penstock.nameserver.options import ConfigUpdates, NameServerOptions
from penstock.nameserver.server import NameServer

__all__ = ["ConfigUpdates", "NameServer", "NameServerOptions"]
