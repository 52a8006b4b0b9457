"""Which batch each query has published last, and which other broker publishes for it: in memory, and every few
seconds in its file.

Rule: only what is on disk is in here, so the file never knows of a publication that a power loss has taken back.
The log has what the file has not; `covered` says from which record on. Each user has query ids of its own. So many
queries are remembered; beyond them the oldest of the user who has the most is evicted. Owned by the event loop.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from penstock.broker.options import BrokerOptions
from penstock.broker.stored_table import StoredTable
from penstock.broker.table_journal import TableJournal
from penstock.metadata.publication_table import (
    Elsewhere,
    PublicationTable,
    Published,
    entry_name,
    query_and_owner,
)
from penstock.metadata.table_json import Members
from penstock.runtime import Runtime

_LOG = logging.getLogger("penstock.broker")
# A batch each millisecond reaches this after 34 years: a number beyond it is a mistake, or meant to stop a query.
BATCH_MAX = 1 << 40


class PublishedBatches:
    """See the module's text. `load` first; `start` and `stop` of `stored` run the saving."""

    def __init__(self, options: BrokerOptions, runtime: Runtime, journal: TableJournal) -> None:
        self._options = options
        self._clock = runtime.clock
        self._table = PublicationTable()
        # Whether any entry has an owner: without, names are query ids and nothing has to be searched.
        self._has_owners = False
        self.stored = StoredTable(
            journal,
            PublicationTable.FILE_NAME,
            self._to_save,
            runtime.clock,
            interval_ms=options.publication_save_interval_ms,
            is_journaled=False,
        )

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self._options = options

    def load(self) -> None:
        """Read the file. Raises CodecError if there is one but none readable."""
        loaded = self.stored.load(PublicationTable)
        if loaded is None:
            return
        self._table = loaded
        by_time = sorted(self._table.queries.items(), key=lambda item: item[1].timestamp_ms)
        self._table.queries = dict(by_time)
        self._table.homes = dict(sorted(self._table.homes.items(), key=lambda item: item[1].timestamp_ms))
        self._has_owners = any(" " in name for name in (*self._table.queries, *self._table.homes))

    def _to_save(self) -> Members:
        table = self._table
        if not self.stored.is_clean:
            table.data_version = table.data_version.next(self._clock.now_ms())
        return table.members()

    @property
    def covered(self) -> int:
        """Records of the publications' topic below this offset are in the table."""
        return self._table.covered

    def last(self, query: str, owner: str = "") -> Published | None:
        """What a user's query published last. A number out of bounds, which version 0.1 took, stops no query."""
        found = [self._table.queries[name] for name in self._visible(self._table.queries, query, owner)]
        in_bounds = (last for last in found if last.batch <= BATCH_MAX)
        return max(in_bounds, key=lambda last: last.batch, default=None)

    def home(self, query: str, owner: str = "") -> str | None:
        """The other broker that publishes for a query, if one was named since it published here. What others have
        left counts only until the user's query publishes here, or names a home, itself."""
        homes, own = self._table.homes, entry_name(query, owner)
        if own in homes:
            return homes[own].broker
        if own in self._table.queries:
            return None
        found = [homes[name] for name in self._visible(homes, query, owner)]
        newest = max(found, key=lambda home: home.timestamp_ms, default=None)
        return newest.broker if newest is not None else None

    def remember_home(
        self, query: str, broker: str, covered: int, timestamp_ms: int = 0, owner: str = ""
    ) -> None:
        """It is on disk which other broker publishes for a query."""
        homes, name = self._table.homes, self._name(query, owner)
        timestamp_ms = max(timestamp_ms or self._clock.now_ms(), _newest_ms(homes) + 1)
        homes.pop(name, None)
        homes[name] = Elsewhere(broker, timestamp_ms)
        self._table.covered = covered
        while len(homes) > self._options.publication_queries_max:
            del homes[self._to_evict(homes)]  # who still publishes tells again with its next batch
        self.stored.changed()

    def remember(
        self, query: str, batch: int, messages: int, covered: int, timestamp_ms: int = 0, owner: str = ""
    ) -> None:
        """A publication is on disk, and so is everything before the record at offset `covered`."""
        queries, name = self._table.queries, self._name(query, owner)
        timestamp_ms = max(timestamp_ms or self._clock.now_ms(), _newest_ms(queries) + 1)
        queries.pop(name, None)
        self._table.homes.pop(name, None)  # it publishes here now
        queries[name] = Published(batch, messages, timestamp_ms)
        self._table.covered = covered
        while len(queries) > self._options.publication_queries_max:
            evicted = self._to_evict(queries)
            _LOG.warning("evicted query %s: its owner has the most queries, and it is the oldest", evicted)
            del queries[evicted]
        self.stored.changed()

    def _name(self, query: str, owner: str) -> str:
        self._has_owners |= bool(owner)
        return entry_name(query, owner)

    def _visible(self, entries: Mapping[str, object], query: str, owner: str) -> list[str]:
        """Names of the entries that count for a user's query: its own, and the one without an owner, which version
        0.1 or a time without access control has left. Without access control the entries of all users count: the
        numbers of a query must not begin anew when access control is turned off."""
        if owner or not self._has_owners:
            return [name for name in {query, entry_name(query, owner)} if name in entries]
        return [name for name in entries if query_and_owner(name)[0] == query]

    def _to_evict(self, entries: Mapping[str, object]) -> str:
        """The oldest entry of the user who has the most, so that no user evicts the entries of others."""
        if not self._has_owners:
            return next(iter(entries))
        counts = Counter(query_and_owner(name)[1] for name in entries)
        most = max(counts.values())
        return next(name for name in entries if counts[query_and_owner(name)[1]] == most)


def _newest_ms(entries: dict[str, Published] | dict[str, Elsewhere]) -> int:
    """The timestamp of the last entry. The next one's is later, also within a millisecond and when the clock was set
    back: timestamps are all that the file knows of the order."""
    return entries[next(reversed(entries))].timestamp_ms if entries else 0
