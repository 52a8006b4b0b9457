"""Consumer offsets in ZooKeeper, in TubeMQ's layout, for brokers whose offsets must outlive their disk.

Rule: what is written there, TubeMQ reads, and the reverse. The other place is RocketMQ's `consumerOffset.json`, which
the broker keeps itself; `migration` copies between the two.
"""

from penstock.coordinator.offsets.layout import OffsetKey, StoredOffset, broker_id_of, broker_id_of_set
from penstock.coordinator.offsets.migration import MigrationReport, copy_from_storage, copy_to_storage
from penstock.coordinator.offsets.options import OffsetStorageOptions
from penstock.coordinator.offsets.storage import OffsetStorage, zookeeper_offset_storage

__all__ = [
    "MigrationReport",
    "OffsetKey",
    "OffsetStorage",
    "OffsetStorageOptions",
    "StoredOffset",
    "broker_id_of",
    "broker_id_of_set",
    "copy_from_storage",
    "copy_to_storage",
    "zookeeper_offset_storage",
]
