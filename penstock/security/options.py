"""Settings of access control, validated once. Plain data, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from penstock.errors import OptionError
from penstock.security.credentials import check_min_signature


class UnknownFields(Enum):
    """What happens to a request with signature 1 and a field that is not defined for its code."""

    REFUSE = "refuse"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """Who may do what on a server, and as whom it calls the others of its cluster. All servers of a cluster read the
    same users."""

    # Whether requests are checked at all. From then on whatever no policy allows is refused (aclEnable,
    # authenticationEnabled and authorizationEnabled).
    enabled: bool = False
    # The users: a plain_acl.yml of RocketMQ 4.9 (needs the extra `acl`) or a TOML file of Penstock's own form, told
    # apart by their ending. Read again when it changes. Empty: access.toml in the data directory.
    users_file: str = ""
    # How often is looked whether the file has changed.
    reload_interval_ms: int = 5_000
    # As whom this server calls name servers, coordinators and other brokers; must be an admin there
    # (innerClientAuthenticationCredentials). Empty: as the first admin among the users, or unsigned without any.
    access_key: str = ""
    # The secret of that user. Better in a file or the environment than on a command line.
    secret_key: str = field(default="", repr=False)
    # Whether every request must carry a stamp against being sent twice. Penstock's clients send one, RocketMQ's do
    # not and are refused then.
    require_stamp: bool = False
    # The lowest signature that requests may have. 1: RocketMQ's; 2: Penstock's, which covers names and lengths of
    # fields: RocketMQ's clients and those of Penstock 0.1 are refused then. This server's own calls follow it too.
    min_signature: int = 1
    # Signature 1 covers neither names nor borders of fields: bytes can be moved into a field that was added. Requests
    # with it are refused if they have a field that no RocketMQ from 4.4 to 5.5 defines for their code; `log` takes
    # them and logs each code and field once, for clients whose own hooks add fields.
    unknown_fields: UnknownFields = UnknownFields.REFUSE
    # How far a stamp may be from this server's clock.
    stamp_window_ms: int = 300_000
    # Clients whose stamps are remembered; more are refused for a while.
    sessions_max: int = 100_000
    # Shared by the brokers and coordinators of a cluster: with it, a replica must prove that it has it before the
    # replication port says anything. Empty with access control: no replication port is opened, and a broker that
    # needs one does not start. Empty without: every peer that reaches the port may read the log, as with RocketMQ.
    cluster_secret: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        for name, low, high in (
            ("reload_interval_ms", 100, 86_400_000),
            ("stamp_window_ms", 1_000, 86_400_000),
            ("sessions_max", 1, 10_000_000),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise OptionError(f"{name} is {value}", f"use {low} to {high}")
        check_min_signature(self.min_signature)
        if bool(self.access_key) != bool(self.secret_key):
            raise OptionError("access_key and secret_key belong together", "set both, or neither")
        if self.cluster_secret and len(self.cluster_secret) < 16:
            raise OptionError("cluster_secret is shorter than 16 characters", "take a long random one")
