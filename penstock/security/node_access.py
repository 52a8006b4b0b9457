"""What a server process has of this room: a guard before its requests, a signature on its own calls, and the secret
of its cluster. Made once by whoever assembles the process and given to every role in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import OptionError
from penstock.runtime import Runtime
from penstock.security.credentials import Credentials
from penstock.security.guard import Guard
from penstock.security.options import AccessOptions
from penstock.security.signing_hook import SigningHook

USERS_FILE = "access.toml"


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """Without a guard everybody may do everything."""

    guard: Guard | None = None
    hook: SigningHook | None = None
    cluster_secret: str = field(default="", repr=False)

    @staticmethod
    def of(options: AccessOptions, data: Path, runtime: Runtime) -> NodeAccess:
        """Reads the users; OptionError if they cannot be read."""
        guard = Guard(options, users_path(options, data), runtime) if options.enabled else None
        hook = None
        if options.access_key:
            keys = Credentials(options.access_key, options.secret_key, min_signature=options.min_signature)
            hook = SigningHook(keys, runtime)
        elif guard is not None:
            hook = SigningHook(guard.own_credentials, runtime)
        return NodeAccess(guard, hook, options.cluster_secret)

    @property
    def replicates(self) -> bool:
        """Whether log and tables may leave this server on a replication port: with access control only to members
        that prove the cluster's secret."""
        return self.guard is None or bool(self.cluster_secret)

    def require_cluster_secret(self, why: str) -> None:
        """OptionError if replication is needed and `replicates` is false."""
        if not self.replicates:
            raise OptionError(
                f"access control is on and access.cluster_secret is not set, but {why}",
                "set access.cluster_secret (environment PENSTOCK_ACCESS_CLUSTER_SECRET) to one long random text on "
                "all brokers and coordinators of the cluster",
            )


def users_path(options: AccessOptions, data: Path) -> Path:
    """Where the users of a server are."""
    return Path(options.users_file) if options.users_file else data / USERS_FILE


OPEN = NodeAccess()
