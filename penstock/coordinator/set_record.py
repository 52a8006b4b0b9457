"""What is durable about one broker set: one metadata entry, `/brokers/<cluster>/<name>`.

    {"cluster":"DefaultCluster","format":1,"masterEpoch":3,"masterId":1,"name":"broker-a","nextId":4,
     "replicas":{"1":{"address":"10.0.0.1:10911","checkCode":"...","haAddress":"10.0.0.1:10912"},"2":{...}},
     "setEpoch":7,"syncStateSet":[1,2],"term":12}

Rules. Every change of a set is one write of this entry at the version it was read with, so that a coordinator that
no longer leads changes nothing. `term` is that of the coordinator that wrote it; a new leader writes every entry once
before it acts on it, and whatever an earlier leader still has under way then fails. Epochs only grow. The master is a
member of the sync-state set, except while it is being replaced because its log may have lost its end (set_rules.py).
Plain values.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import MetadataFormatError

FORMAT = 1
ROOT = "/brokers"
FIRST_ID = 1


@dataclass(frozen=True, slots=True)
class Replica:
    """One broker of a set, as it registered."""

    address: str = ""
    ha_address: str = ""
    # Names the process that was given the id, so that it may ask for the same one again.
    check_code: str = ""


@dataclass(frozen=True, slots=True)
class SetRecord:
    """One version of the entry. `replicas` is never changed in place."""

    cluster: str
    name: str
    replicas: dict[int, Replica] = field(default_factory=dict)
    next_id: int = FIRST_ID
    master_id: int | None = None
    # 0: there never was a master, and nothing was ever acknowledged.
    master_epoch: int = 0
    set_epoch: int = 0
    sync_set: frozenset[int] = frozenset()
    term: int = 0

    @property
    def path(self) -> str:
        return set_path(self.cluster, self.name)

    @property
    def master(self) -> Replica | None:
        return None if self.master_id is None else self.replicas.get(self.master_id)

    @property
    def sync_ids(self) -> list[int]:
        return sorted(self.sync_set)

    def encode(self) -> bytes:
        members = {
            "cluster": self.cluster,
            "format": FORMAT,
            "masterEpoch": self.master_epoch,
            "masterId": self.master_id,
            "name": self.name,
            "nextId": self.next_id,
            "replicas": {
                str(broker_id): {
                    "address": replica.address,
                    "checkCode": replica.check_code,
                    "haAddress": replica.ha_address,
                }
                for broker_id, replica in sorted(self.replicas.items())
            },
            "setEpoch": self.set_epoch,
            "syncStateSet": self.sync_ids,
            "term": self.term,
        }
        return json.dumps(members, separators=(",", ":")).encode()

    @staticmethod
    def decode(value: bytes, path: str = "") -> SetRecord:
        """MetadataFormatError for whatever is no such entry: a set that cannot be read is not guessed at."""
        try:
            members = json.loads(value)
            if members["format"] != FORMAT:
                raise ValueError(f"its format is {members['format']!r}, not {FORMAT}")
            return _read(members)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MetadataFormatError(
                f"{path or 'the entry of a broker set'} cannot be read: {error}",
                "it was written by something else, or by a later version",
            ) from error


def _read(members: dict[str, Any]) -> SetRecord:
    master = members["masterId"]
    record = SetRecord(
        cluster=str(members["cluster"]),
        name=str(members["name"]),
        replicas={
            int(broker_id): Replica(str(item["address"]), str(item["haAddress"]), str(item["checkCode"]))
            for broker_id, item in members["replicas"].items()
        },
        next_id=int(members["nextId"]),
        master_id=None if master is None else int(master),
        master_epoch=int(members["masterEpoch"]),
        set_epoch=int(members["setEpoch"]),
        sync_set=frozenset(int(broker_id) for broker_id in members["syncStateSet"]),
        term=int(members["term"]),
    )
    strangers = record.sync_set - record.replicas.keys()
    if strangers:
        raise ValueError(f"its sync-state set names {sorted(strangers)}, which are no replicas")
    return record


def set_path(cluster: str, name: str) -> str:
    return f"{ROOT}/{cluster}/{name}"
