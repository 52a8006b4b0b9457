"""What was published last by whom: `config/stagedPublications.json`.

    {"covered":12,"dataVersion":{...},
     "queries":{"0a3b... billing":{"batch":41,"messages":15000,"timestamp":1700000000000}},
     "homes":{"77c1...":{"broker":"broker-b","timestamp":1700000000000}}}

Rules: one entry for each query of each user, its last batch. A name is the query's id, which has no blank, and where
access control was on a blank and the user behind it; version 0.1 wrote no users. `homes` has the queries that publish
at another broker, and is left out where there are none; `covered` is the offset of the first record of the
publications' topic that is not in the table yet. The records of the log are the truth and this is a shortcut past
them: without the file, as much of it is found again as the log still has. Plain data, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Self

from penstock.metadata.config_files import DataVersion
from penstock.metadata.fastjson import JsonObject, JsonValue
from penstock.metadata.json_fields import INT64_MAX, JsonFields
from penstock.metadata.table_json import Members, Rows, table_json


def entry_name(query: str, owner: str) -> str:
    """What the entry of a user's query is called."""
    return f"{query} {owner}" if owner else query


def query_and_owner(name: str) -> tuple[str, str]:
    """The same taken apart; the owner is empty if there is none."""
    query, _, owner = name.partition(" ")
    return query, owner


@dataclass(frozen=True, slots=True)
class Published:
    """The last batch of a query."""

    batch: int
    messages: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The other broker that publishes for a query."""

    broker: str
    timestamp_ms: int


@dataclass(slots=True)
class PublicationTable:
    """The last publication of each query, and where others publish."""

    FILE_NAME: ClassVar[str] = "stagedPublications.json"

    data_version: DataVersion = field(default_factory=DataVersion)
    covered: int = 0
    queries: dict[str, Published] = field(default_factory=dict)
    extra: JsonObject = field(default_factory=dict)
    homes: dict[str, Elsewhere] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: JsonValue, source: str = FILE_NAME) -> Self:
        fields = JsonFields(value, source)
        queries = {
            name: Published(
                entry.integer("batch", 0, -INT64_MAX, INT64_MAX),
                entry.integer("messages", 0, 0, INT64_MAX),
                entry.integer("timestamp", 0, 0, INT64_MAX),
            )
            for name, entry in fields.table("queries")
        }
        homes = {
            name: Elsewhere(entry.text("broker", ""), entry.integer("timestamp", 0, 0, INT64_MAX))
            for name, entry in fields.table("homes")
        }
        return cls(
            data_version=DataVersion.read(fields.inner("dataVersion")),
            covered=fields.integer("covered", 0, 0, INT64_MAX),
            queries=queries,
            homes=homes,
            extra=fields.rest(),
        )

    def to_json(self) -> JsonObject:
        return table_json(self.members())

    def members(self) -> Members:
        members: Members = {
            **self.extra,
            "covered": self.covered,
            "dataVersion": self.data_version.to_json(),
            "queries": Rows(lambda: list(self.queries.items()), lambda item: item, _published_json),
        }
        if self.homes:
            members["homes"] = Rows(lambda: list(self.homes.items()), lambda item: item, _home_json)
        return members

    def apply(self, change: JsonFields) -> None:
        """None of its changes are in the journal: the log has them, from `covered` on."""


def _published_json(last: Published) -> JsonObject:
    return {"batch": last.batch, "messages": last.messages, "timestamp": last.timestamp_ms}


def _home_json(home: Elsewhere) -> JsonObject:
    return {"broker": home.broker, "timestamp": home.timestamp_ms}
