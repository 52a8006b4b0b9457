"""Who may do what: credentials and signatures, users and policies, and the guard that servers put before a request.

    client    Credentials -> SigningHook            every request is signed as RocketMQ's clients sign theirs
    server    AccessOptions -> Guard                signature, age, then what the request needs against the policies

Rules: nothing is allowed that no policy allows. A secret is in no text that leaves this room: no repr, no log line,
no error, no answer. Sans-I/O but for the files that users are read from; sockets belong to `remoting`.
"""

from penstock.security.cluster_network import cluster_runtime
from penstock.security.credentials import Credentials
from penstock.security.guard import Guard
from penstock.security.node_access import OPEN, NodeAccess
from penstock.security.options import AccessOptions
from penstock.security.signing_hook import SigningHook

__all__ = ["OPEN", "AccessOptions", "Credentials", "Guard", "NodeAccess", "SigningHook", "cluster_runtime"]
