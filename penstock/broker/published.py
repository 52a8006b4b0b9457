"""Which batch each query has published last, and which other broker publishes for it: in memory, and every few
seconds in its file.

Rule: only what is on disk is in here, so the file never knows of a publication that a power loss has taken back.
The log has what the file has not; `covered` says from which record on. So many queries are remembered, and beyond
them the one whose last publication is the oldest is forgotten. Owned by the event loop.
"""

from __future__ import annotations

import logging

from penstock.broker.options import BrokerOptions
from penstock.broker.stored_table import StoredTable
from penstock.broker.table_journal import TableJournal
from penstock.metadata.publication_table import Elsewhere, PublicationTable, Published
from penstock.metadata.table_json import Members
from penstock.runtime import Runtime

_LOG = logging.getLogger("penstock.broker")


class PublishedBatches:
    """See the module's text. `load` first; `start` and `stop` of `stored` run the saving."""

    def __init__(self, options: BrokerOptions, runtime: Runtime, journal: TableJournal) -> None:
        self._options = options
        self._clock = runtime.clock
        self._table = PublicationTable()
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

    def _to_save(self) -> Members:
        table = self._table
        if not self.stored.is_clean:
            table.data_version = table.data_version.next(self._clock.now_ms())
        return table.members()

    @property
    def covered(self) -> int:
        """Records of the publications' topic below this offset are in the table."""
        return self._table.covered

    def last(self, query: str) -> Published | None:
        """What a query published last."""
        return self._table.queries.get(query)

    def home(self, query: str) -> str | None:
        """The other broker that publishes for a query, if one was named since it published here."""
        found = self._table.homes.get(query)
        return found.broker if found is not None else None

    def remember_home(self, query: str, broker: str, covered: int, timestamp_ms: int = 0) -> None:
        """It is on disk which other broker publishes for a query."""
        homes = self._table.homes
        timestamp_ms = max(timestamp_ms or self._clock.now_ms(), _newest_ms(homes) + 1)
        homes.pop(query, None)
        homes[query] = Elsewhere(broker, timestamp_ms)
        self._table.covered = covered
        while len(homes) > self._options.publication_queries_max:
            del homes[next(iter(homes))]  # who still publishes tells again with its next batch
        self.stored.changed()

    def remember(self, query: str, batch: int, messages: int, covered: int, timestamp_ms: int = 0) -> None:
        """A publication is on disk, and so is everything before the record at offset `covered`."""
        queries = self._table.queries
        timestamp_ms = max(timestamp_ms or self._clock.now_ms(), _newest_ms(queries) + 1)
        queries.pop(query, None)
        self._table.homes.pop(query, None)  # it publishes here now
        queries[query] = Published(batch, messages, timestamp_ms)
        self._table.covered = covered
        while len(queries) > self._options.publication_queries_max:
            oldest = next(iter(queries))  # they are in the order of their last publications
            _LOG.warning("query %s has published nothing for longest and is forgotten", oldest)
            del queries[oldest]
        self.stored.changed()


def _newest_ms(entries: dict[str, Published] | dict[str, Elsewhere]) -> int:
    """The timestamp of the last entry. The next one's is later, also within a millisecond and when the clock was set
    back: timestamps are all that the file knows of the order."""
    return entries[next(reversed(entries))].timestamp_ms if entries else 0
