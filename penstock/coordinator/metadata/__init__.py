"""The metadata port (`port`), its backends (`embedded`: SQLite, `zookeeper`: kazoo) and elections on top of it.

Rule: nothing outside this folder knows which backend it talks to; `metadata_store` picks it by its address.
"""

from penstock.coordinator.metadata.addresses import metadata_store
from penstock.coordinator.metadata.election import Election
from penstock.coordinator.metadata.port import (
    Check,
    Create,
    Delete,
    Entry,
    MetadataStore,
    Operation,
    SessionState,
    Set,
    Watch,
)

__all__ = [
    "Check",
    "Create",
    "Delete",
    "Election",
    "Entry",
    "MetadataStore",
    "Operation",
    "SessionState",
    "Set",
    "Watch",
    "metadata_store",
]
