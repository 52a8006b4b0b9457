"""Headers of RocketMQ's controller (codes 1001 to 1013) and of our beats to a coordinator (9020). Plain values.

Where a request has fields of our own, they are optional and named so below: RocketMQ's brokers and tools never send
them, and its controllers ignore them.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.protocol.headers.header import I32, I64, Header


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterSyncStateSetRequestHeader(Header):
    """Code 1001; the body is the proposed set, with the set epoch from which it was made."""

    broker_name: str
    master_broker_id: I64
    master_epoch: I32
    invoke_time: I64 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterSyncStateSetResponseHeader(Header):
    """The epoch of the new set."""

    new_sync_state_set_epoch: I32


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectMasterRequestHeader(Header):
    """Code 1002. A broker asks with its own id; an administrator with -1, or with the id to be elected."""

    cluster_name: str = ""
    broker_name: str
    broker_id: I64 = -1
    designate_elect: bool = False
    invoke_time: I64 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectMasterResponseHeader(Header):
    """Who is master; without an id nobody is."""

    master_broker_id: I64 | None = None
    master_address: str | None = None
    master_epoch: I32 | None = None
    sync_state_set_epoch: I32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerToControllerRequestHeader(Header):
    """Code 1003. From `ha_address` on the fields are ours (docs/coordinator/README.md)."""

    cluster_name: str
    broker_name: str
    broker_id: I64
    broker_address: str
    invoke_time: I64 | None = None
    ha_address: str | None = None
    incarnation: I64 = 0
    log_intact: bool = True
    # The last epoch of its log, and the log's end.
    max_epoch: I32 = 0
    max_offset: I64 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerToControllerResponseHeader(Header):
    """Who is master; without an id nobody is."""

    cluster_name: str
    broker_name: str
    master_broker_id: I64 | None = None
    master_address: str | None = None
    master_epoch: I32 | None = None
    sync_state_set_epoch: I32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetReplicaInfoRequestHeader(Header):
    """Code 1004."""

    broker_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetReplicaInfoResponseHeader(Header):
    """Who is master; without an id nobody is."""

    master_broker_id: I64 | None = None
    master_address: str | None = None
    master_epoch: I32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMetaDataResponseHeader(Header):
    """Code 1005: who leads the coordinators. `peers` is `id-host:port`, separated by semicolons."""

    group: str
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool
    peers: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyBrokerRoleChangedRequestHeader(Header):
    """Code 1008, one-way, from the coordinator to a broker; the body is the sync-state set. `master_ha_address` and
    `term` are ours."""

    master_address: str | None = None
    master_epoch: I32
    sync_state_set_epoch: I32
    master_broker_id: I64 | None = None
    master_ha_address: str | None = None
    term: I64 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanControllerBrokerDataRequestHeader(Header):
    """Code 1011. Ids are separated by semicolons; none means every broker of the set."""

    cluster_name: str = ""
    broker_name: str
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False
    invoke_time: I64 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetNextBrokerIdRequestHeader(Header):
    """Code 1012."""

    cluster_name: str
    broker_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetNextBrokerIdResponseHeader(Header):
    """An id that nobody has, to be applied for."""

    cluster_name: str
    broker_name: str
    next_broker_id: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyBrokerIdRequestHeader(Header):
    """Code 1013. The check code names whoever applies, so that it may ask twice."""

    cluster_name: str
    broker_name: str
    applied_broker_id: I64
    register_check_code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyBrokerIdResponseHeader(Header):
    """The id is given."""

    cluster_name: str
    broker_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerBeatRequestHeader(Header):
    """Code 9020, ours: a broker reports to its coordinator, every 500 ms and after every change of its role.

    `incarnation` counts the starts of the broker, from 1. `master_epoch` is the epoch in which it acts since it was
    started, as master or as a replica; 0 while it has not been told. `topics_version` is a master's: the version of
    its topic table; the body is that table if the last answer did not name the same version.
    """

    cluster_name: str
    broker_name: str
    broker_id: I64
    broker_address: str
    ha_address: str
    incarnation: I64
    master_epoch: I32 = 0
    max_offset: I64 = 0
    confirm_offset: I64 = 0
    election_priority: I32 = 2**31 - 1
    is_stopping: bool = False
    topics_version: I64 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerBeatResponseHeader(Header):
    """The set as it is; the body is its sync-state set.

    `lease_ms`, if it is not 0, counts from the moment the beat was sent, for the epoch that is named here. `term` is
    that of the coordinator; an answer with a lower one than before is to be ignored. `topics_version` is the version
    of the topic table that is known here, absent if none is.
    """

    master_broker_id: I64 | None = None
    master_address: str | None = None
    master_ha_address: str | None = None
    master_epoch: I32
    sync_state_set_epoch: I32
    term: I64
    lease_ms: I32 = 0
    topics_version: I64 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotLeaderResponseHeader(Header):
    """With code 2007: where the leading coordinator is, if anybody knows. Ours."""

    leader_address: str | None = None
    term: I64 = 0
