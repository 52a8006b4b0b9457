"""Consumer groups and their settings: created on demand, kept in `subscriptionGroup.json` and its journal.

Rules: a name is checked before it becomes a group (A6); what clients create by merely naming it is limited in
rate and number (A14). Every change moves the data version on and is saved. The groups that RocketMQ's own
tools use exist from the start. Owned by the event loop. Who is online in a group is not known here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType

from penstock.broker.creation import CreationLimit
from penstock.broker.options import BrokerOptions
from penstock.broker.stored_table import StoredTable
from penstock.broker.table_journal import TableJournal
from penstock.errors import RequestError
from penstock.metadata.config_files import DataVersion
from penstock.metadata.group_table import FORBIDDEN_TO_READ, SubscriptionGroup, SubscriptionGroupTable
from penstock.metadata.table_json import Members
from penstock.protocol.codes import ResponseCode
from penstock.runtime import Runtime

_LOG = logging.getLogger("penstock.broker")
_NAME = re.compile(r"[%|a-zA-Z0-9_-]{1,120}")
GroupConfig = SubscriptionGroup
SYSTEM_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)


def is_group(name: str) -> bool:
    """Whether a group may have this name."""
    return _NAME.fullmatch(name) is not None


def validate_group(name: str) -> None:
    """Refuse a name that no group may have."""
    if not is_group(name):
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"invalid group name {name[:80]!r}",
            "use 1 to 120 letters, digits and the characters % | _ -",
        )


class Groups:
    """See the module's text. `load` first; `start` and `stop` run the saving."""

    def __init__(
        self,
        options: BrokerOptions,
        runtime: Runtime,
        journal: TableJournal,
        limit: CreationLimit | None = None,
    ) -> None:
        self._options = options
        self._clock = runtime.clock
        self._limit = limit or CreationLimit(runtime.clock, options.create_per_second, options.create_burst)
        self._table = SubscriptionGroupTable()
        # Told of the name of a group that was made, changed or deleted.
        self.on_change: list[Callable[[str], None]] = []
        # Returns when whoever could be master next knows of every change; None where nobody else could.
        self.replicated: Callable[[], Awaitable[None]] | None = None
        self.stored = StoredTable(
            journal,
            SubscriptionGroupTable.FILE_NAME,
            self._members,
            runtime.clock,
            interval_ms=options.table_save_interval_ms,
        )

    def load(self) -> None:
        """Read the file and add what every broker has. Raises CodecError if there is a file but none readable."""
        loaded = self.stored.load(SubscriptionGroupTable)
        if loaded is not None:
            self._table = loaded
        for name in SYSTEM_GROUPS:
            if name not in self._table.groups:
                self._put(SubscriptionGroup(name))

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self._options = options

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

    def snapshot(self) -> SubscriptionGroupTable:
        """Everything as it is now; later changes do not reach it."""
        table = self._table
        forbidden = {group: dict(topics) for group, topics in table.forbidden.items()}
        return SubscriptionGroupTable(table.data_version, dict(table.groups), forbidden, table.extra)

    # -- questions -------------------------------------------------------------------------------------------

    @property
    def data_version(self) -> DataVersion:
        return self._table.data_version

    def find(self, name: str) -> SubscriptionGroup | None:
        """The group if there is one; never creates."""
        return self._table.groups.get(name)

    def get(self, name: str) -> SubscriptionGroup | None:
        """The group; one that is new is created where that is allowed, the name is good and there is room."""
        known = self._table.groups.get(name)
        if known is not None or not self._options.auto_create_groups or not is_group(name):
            return known
        if len(self._table.groups) >= self._options.auto_groups_max or not self._limit.take():
            _LOG.warning("group %s is not created: there are too many, or too many at once", name)
            return None
        made = SubscriptionGroup(name, retry_max_times=self._options.retry_max_times)
        _LOG.info("group %s is created", name)
        self._put(made)
        return made

    def require(self, name: str) -> SubscriptionGroup:
        """As `get`, and raises RequestError 26 where there is none."""
        config = self.get(name)
        if config is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"consumer group {name[:80]!r} does not exist",
                "create it, or use a name that may be created",
            )
        return config

    def all(self) -> Mapping[str, SubscriptionGroup]:
        """Every group by name; a view that follows changes."""
        return MappingProxyType(self._table.groups)

    def forbidden(self) -> Mapping[str, Mapping[str, int]]:
        """What groups may not do: group, then topic, then bits."""
        return MappingProxyType(self._table.forbidden)

    def is_read_forbidden(self, group: str, topic: str) -> bool:
        """Whether an operator barred a group from a topic."""
        topics = self._table.forbidden.get(group)
        return topics is not None and bool(topics.get(topic, 0) & FORBIDDEN_TO_READ)

    # -- changes ---------------------------------------------------------------------------------------------

    def update(self, config: SubscriptionGroup) -> None:
        """Create or replace, as an operator asked."""
        validate_group(config.name)
        if config.name not in self._table.groups and len(self._table.groups) >= self._options.groups_max:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"group {config.name} is not created: the broker has {len(self._table.groups)} groups",
                "delete some, or raise groups_max",
            )
        if self._table.groups.get(config.name) != config:
            self._put(config)

    def delete(self, name: str) -> bool:
        """Forget a group; whether there was one."""
        forbidden = self._table.forbidden.pop(name, None)
        known = self._table.groups.pop(name, None)
        if known is None and forbidden is None:
            return False
        _LOG.info("group %s is deleted", name)
        self._moved_on(name)
        return known is not None

    def forbid_read(self, group: str, topic: str, is_forbidden: bool) -> None:
        """Bar a group from a topic, or let it in again."""
        topics = self._table.forbidden.get(group, {})
        bits = topics.get(topic, 0)
        wanted = bits | FORBIDDEN_TO_READ if is_forbidden else bits & ~FORBIDDEN_TO_READ
        if wanted == bits:
            return
        changed = {**topics, topic: wanted}
        if not wanted:
            del changed[topic]
        if changed:
            self._table.forbidden[group] = changed
        else:
            self._table.forbidden.pop(group, None)
        self._moved_on(group)

    def copy(self, table: SubscriptionGroupTable, gone: Iterable[str] | None = None) -> None:
        """What a replica does: take a master's groups over, without those that are `gone`; None: all but these are.
        What is forbidden is always taken over as a whole."""
        mine = self._table
        if gone is None:
            gone = [name for name in mine.groups if name not in table.groups]
        changed = [name for name, group in table.groups.items() if mine.groups.get(name) != group]
        lost = [name for name in gone if mine.groups.pop(name, None) is not None]
        mine.groups.update((name, table.groups[name]) for name in changed)
        is_same = mine.data_version == table.data_version and mine.forbidden == table.forbidden
        if changed or lost or not is_same:
            names = {*changed, *lost}
            names |= {
                name
                for name in {*mine.forbidden, *table.forbidden}
                if mine.forbidden.get(name) != table.forbidden.get(name)
            }
            mine.data_version = table.data_version
            mine.forbidden = {name: dict(topics) for name, topics in table.forbidden.items()}
            self.stored.changed(*map(mine.change_of, names or [""]))

    def _put(self, config: SubscriptionGroup) -> None:
        self._table.groups[config.name] = config
        self._moved_on(config.name)

    def _moved_on(self, name: str) -> None:
        self._table.data_version = self._table.data_version.next(self._clock.now_ms())
        self.stored.changed(self._table.change_of(name))
        for listener in self.on_change:
            listener(name)
