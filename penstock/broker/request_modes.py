"""How groups get the messages of a topic, by pulling or by popping: `messageRequestMode.json` and its journal.

Set by operators (`mqadmin setConsumeMode`), asked for by clients that let the broker divide the queues. The number of
entries is limited (A14); those of a topic or group that is gone go with it. In a set the replicas get the table with
the other side tables. Owned by the event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from penstock.broker.options import BrokerOptions
from penstock.broker.stored_table import StoredTable
from penstock.broker.table_journal import TableJournal
from penstock.errors import RequestError
from penstock.metadata.request_mode_table import RequestMode, RequestModeConfig, RequestModeTable
from penstock.metadata.table_json import Members
from penstock.protocol.codes import ResponseCode
from penstock.protocol.topic_names import RETRY_PREFIX
from penstock.runtime import Runtime


class RequestModes:
    """See the module's text. `load` first; `start` and `stop` run the saving."""

    def __init__(self, options: BrokerOptions, runtime: Runtime, journal: TableJournal) -> None:
        self._options = options
        self._table = RequestModeTable()
        # Told that the table has changed.
        self.on_change: list[Callable[[], None]] = []
        # Returns when whoever could be master next knows of every change; None where nobody else could.
        self.replicated: Callable[[], Awaitable[None]] | None = None
        self.stored = StoredTable(
            journal,
            RequestModeTable.FILE_NAME,
            self._members,
            runtime.clock,
            interval_ms=options.table_save_interval_ms,
        )

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self._options = options

    def load(self) -> None:
        """Read the file. Raises CodecError if there is one but none readable."""
        loaded = self.stored.load(RequestModeTable)
        if loaded is not None:
            self._table = loaded

    def _members(self) -> Members:
        return self._table.members()

    def start(self) -> None:
        self.stored.start()

    async def stop(self) -> None:
        await self.stored.stop()

    async def save(self) -> bool:
        """Wait until every change so far is on disk, and wherever else it has to be; False if that failed."""
        is_saved = await self.stored.save()
        if self.replicated is not None:
            await self.replicated()
        return is_saved

    def snapshot(self) -> RequestModeTable:
        """Everything as it is now; later changes do not reach it."""
        copied = {topic: dict(groups) for topic, groups in self._table.modes.items()}
        return RequestModeTable(copied, self._table.extra)

    def get(self, topic: str, group: str) -> RequestModeConfig:
        """What was set, or the default. What clients gave back by pulling is pulled."""
        known = self._table.modes.get(topic, {}).get(group)
        if known is not None:
            return known
        if self._options.pop_by_default and not topic.startswith(RETRY_PREFIX):
            return RequestModeConfig(RequestMode.POP, self._options.pop_share_queues)
        return RequestModeConfig()

    def set(self, topic: str, group: str, config: RequestModeConfig) -> None:
        """As an operator asked."""
        groups = self._table.modes.get(topic, {})
        if group not in groups and self._table.count >= self._options.request_modes_max:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"the broker knows of {self._table.count} pairs of topic and group how they consume",
                "delete topics or groups that are not used, or raise request_modes_max",
            )
        self._table.modes.setdefault(topic, {})[group] = config
        self._changed(topic)

    def remove_topic(self, topic: str) -> None:
        if self._table.modes.pop(topic, None) is not None:
            self._changed(topic)

    def copy(self, table: RequestModeTable) -> None:
        """What a replica does: take a master's table over."""
        before = self._table.modes
        changed = [topic for topic in {*before, *table.modes} if before.get(topic) != table.modes.get(topic)]
        if changed:
            self._table = RequestModeTable({t: dict(g) for t, g in table.modes.items()}, self._table.extra)
            self.stored.changed(*map(self._table.change_of, changed))

    def _changed(self, topic: str) -> None:
        self.stored.changed(self._table.change_of(topic))
        for listener in self.on_change:
            listener()
