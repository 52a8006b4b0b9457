"""What a coordinator says about itself and its broker sets (COORDINATOR_STATUS, 9025). Reads, never changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.metadata.fastjson import JsonObject

if TYPE_CHECKING:
    from penstock.coordinator.replica_sets import ReplicaSet
    from penstock.coordinator.server import Coordinator


def coordinator_status(coordinator: Coordinator) -> JsonObject:
    leadership, store = coordinator.leadership, coordinator.store
    now_ms = store.clock_ms
    sets: JsonObject = {}
    for name in coordinator.sets.names():
        one = coordinator.sets.get(name)
        if one is not None and one.record is not None:
            sets[name.name] = {
                **_set_status(one, now_ms),
                "cluster": name.cluster,
                "topics": len(coordinator.topics.topics(name)),
            }
    found: JsonObject = {
        "address": leadership.identity,
        "isLeader": leadership.is_sure,
        "leader": leadership.leader,
        "term": leadership.term,
        "metadata": store.address,
        "metadataState": store.state.value,
        "copyAgeMs": coordinator.copies.age_ms,
        "peers": [*coordinator.entry.peers],
        "brokerSets": sets,
        "brokers": len(coordinator.heartbeats.brokers),
        "consumers": len(coordinator.heartbeats.consumers),
        "producers": len(coordinator.heartbeats.producers),
        "counters": dict(coordinator.meters.counters),
    }
    for part in coordinator.parts:
        found.update(part.status())
    return found


def _set_status(one: ReplicaSet, now_ms: int) -> JsonObject:
    record = one.record
    if record is None:
        return {}
    members: JsonObject = {
        str(member.broker_id): {
            "isAlive": member.is_alive(now_ms),
            "epoch": member.epoch,
            "maxOffset": member.max_offset,
            "confirmOffset": member.confirm_offset,
            "silentMs": now_ms - member.heard_ms,
        }
        for member in one.members
    }
    return {
        "masterId": record.master_id,
        "masterEpoch": record.master_epoch,
        "syncStateSet": [*record.sync_ids],
        "syncStateSetEpoch": record.set_epoch,
        "leaseMs": max(0, one.lease.until_ms - now_ms),
        "phase": one.phase.value,
        "elections": one.elections,
        "members": members,
    }
