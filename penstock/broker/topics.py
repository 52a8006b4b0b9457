"""The broker's topics: found by name on every request, created on demand, kept in `topics.json` and its journal.

Rules: a name is checked before it becomes a topic (A6). What a send may create is limited in queues, in rate
and in number (A14); operators and the broker itself are not. Every change moves the data version on, is
announced to `on_change` with the topic's config (None if it was deleted) and is saved. Reserved topics are
told apart here: `is_system` may not be created, changed or deleted by a request, and `is_sendable` says which of them
a client may write to (A7). Owned by the event loop; it never waits and never touches messages.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from penstock.broker.creation import CreationLimit
from penstock.broker.options import BrokerOptions
from penstock.broker.stored_table import StoredTable
from penstock.broker.table_journal import TableJournal
from penstock.errors import RequestError
from penstock.metadata.config_files import DataVersion
from penstock.metadata.table_json import Members
from penstock.metadata.topic_table import Permission, TopicConfig, TopicTable
from penstock.protocol.codes import ResponseCode
from penstock.protocol.topic_names import (
    BENCHMARK_TOPIC,
    CHECK_MAX_TOPIC,
    DEAD_LETTER_PREFIX,
    HALF_DONE_TOPIC,
    HALF_TOPIC,
    MODEL_TOPIC,
    OFFSET_MOVED_TOPIC,
    PUBLISHED_TOPIC,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    REVIVE_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    STAGED_TOPIC,
    SYSTEM_PREFIX,
    TRACE_TOPIC,
    WHEEL_TIMER_TOPIC,
    Writer,
    reserved,
)
from penstock.runtime import Runtime
from penstock.store.layout import TOPIC_SIZE_MAX, is_topic

_LOG = logging.getLogger("penstock.broker")

_OWN_TOPICS = frozenset((STAGED_TOPIC, PUBLISHED_TOPIC))
SYSTEM_TOPICS = frozenset(
    (
        MODEL_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        TRACE_TOPIC,
        HALF_DONE_TOPIC,
        CHECK_MAX_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    )
)
# Messages wait here for the topic that REAL_TOPIC names.
HOLDING_TOPICS = frozenset((SCHEDULE_TOPIC, HALF_TOPIC, CHECK_MAX_TOPIC, WHEEL_TIMER_TOPIC))


def may_be_delivered_to(topic: str) -> bool:
    """Whether a message that waited in a topic of the broker's may go to this one: never to where it would become a
    record of the broker's, whatever REAL_TOPIC says."""
    row = reserved(topic)
    return (
        row is None
        or row.writer is Writer.CLIENTS
        or row.name in (DEAD_LETTER_PREFIX, "RMQ_SYS_", SYSTEM_PREFIX)
    )


_READ_WRITE = Permission.READ | Permission.WRITE
_ALL = _READ_WRITE | Permission.INHERIT
UNIT_FLAG = 1
UNIT_SUBSCRIPTION_FLAG = 2
ChangeListener = Callable[[TopicConfig | None], None]


def retry_topic(group: str) -> str:
    """Where messages of a group wait to be tried again."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Where messages of a group end that no try could consume."""
    return DEAD_LETTER_PREFIX + group


def validate_topic(name: str) -> None:
    """Refuse a name that no topic may have."""
    if not is_topic(name):
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"invalid topic name {name[:80]!r}",
            f"use 1 to {TOPIC_SIZE_MAX} letters, digits and the characters % | _ -",
        )


class Topics:
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
        self._table = TopicTable()
        self._topics = self._table.topics
        self.on_change: list[ChangeListener] = []
        # Returns when whoever could be master next knows of every change; None where nobody else could.
        self.replicated: Callable[[], Awaitable[None]] | None = None
        # Told of the name of a topic that is gone.
        self.on_delete: list[Callable[[str], None]] = []
        # Topics made by sends that a power loss would still take: how many syncs they wait for, and what waits for
        # them.
        self._unsaved: dict[str, tuple[int, list[Callable[[], None]]]] = {}
        self.stored = StoredTable(
            journal,
            TopicTable.FILE_NAME,
            self._members,
            runtime.clock,
            interval_ms=options.table_save_interval_ms,
        )

    # -- lifecycle -------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the file and add what every broker has. Raises CodecError if there is a file but none readable."""
        loaded = self.stored.load(TopicTable)
        if loaded is not None:
            self._table = loaded
            self._topics = self._table.topics
        for config in self._built_in():
            if config.name not in self._topics:
                self._put(config)
        self._set_model()

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options; the model topic follows them."""
        self._options = options
        self._set_model()

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

    def _built_in(self) -> list[TopicConfig]:
        cluster, broker = self._options.cluster_name, self._options.broker_name
        found = [
            _topic(SELF_TEST_TOPIC, 1),
            _topic(BENCHMARK_TOPIC, 1024),
            _topic(cluster, 16, _ALL),
            _topic(broker, 1, _ALL),
            _topic(OFFSET_MOVED_TOPIC, 1),
            _topic(SCHEDULE_TOPIC, 18),
            _topic(self.reply_topic, 1),
            _topic(f"{REVIVE_PREFIX}{cluster}", 8),
            _topic(f"{SYSTEM_PREFIX}SYNC_BROKER_MEMBER_{broker}", 1, Permission.INHERIT),
            _topic(HALF_TOPIC, 1),
            _topic(HALF_DONE_TOPIC, 1),
            _topic(WHEEL_TIMER_TOPIC, 1),
        ]
        if self._options.trace_topic_enabled:
            found.append(_topic(self._options.trace_topic, 1))
        return found

    def _set_model(self) -> None:
        """TBW102 is made anew from the options at each start: they say whether it is a model, and how large."""
        options = self._options
        if not options.auto_create_topics:
            if MODEL_TOPIC in self._topics:
                self.delete(MODEL_TOPIC)
            return
        queues = min(options.default_topic_queues, options.auto_topic_queues_max)
        model = _topic(MODEL_TOPIC, queues, _ALL)
        if self._topics.get(MODEL_TOPIC) != model:
            self._put(model)

    # -- questions -------------------------------------------------------------------------------------------

    @property
    def reply_topic(self) -> str:
        """Where replies to requests are sent."""
        return f"{self._options.cluster_name}{REPLY_SUFFIX}"

    @property
    def data_version(self) -> DataVersion:
        return self._table.data_version

    def get(self, name: str) -> TopicConfig | None:
        return self._topics.get(name)

    def all(self) -> Mapping[str, TopicConfig]:
        """Every topic by name; a view that follows changes."""
        return MappingProxyType(self._topics)

    def is_system(self, name: str) -> bool:
        """Whether the name is reserved: no request creates, changes or deletes such a topic."""
        return (
            name in SYSTEM_TOPICS
            or name in _OWN_TOPICS
            or name.startswith(SYSTEM_PREFIX)
            or name in (self._options.cluster_name, self._options.broker_name, self.reply_topic)
        )

    def is_sendable(self, name: str) -> bool:
        """Whether a client may send to a topic of this name (A7)."""
        row = reserved(name)
        if row is None or row.writer is Writer.CLIENTS:
            return True
        # An operator may name a trace topic under a system prefix, but none that has a row of its own.
        return name == self._options.trace_topic and row.name in ("RMQ_SYS_", SYSTEM_PREFIX)

    # -- changes ---------------------------------------------------------------------------------------------

    def create_for_send(
        self, name: str, template: str, queue_nums: int, *, unit_mode: bool = False
    ) -> TopicConfig:
        """The topic; if there is none, one made on the model of `template`. Raises RequestError 17 if not."""
        known = self._topics.get(name)
        if known is not None:
            return known
        validate_topic(name)
        model = self._model_for(name, template)
        self._check_room(name)
        queues = max(0, min(queue_nums, model.write_queue_nums, self._options.auto_topic_queues_max))
        made = TopicConfig(
            name=name,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=model.perm & ~Permission.INHERIT,
            filter_type=model.filter_type,
            sys_flag=UNIT_FLAG if unit_mode else 0,
        )
        _LOG.info("topic %s is created by a send, %d queues", name, queues)
        self._put(made)
        if self.stored.is_running:
            # It may have been made and deleted since the last sync: those who wait for that one wait on.
            syncs, waiting = self._unsaved.get(name, (0, []))
            self._unsaved[name] = (syncs + 1, waiting)
            self.stored.once_saved(partial(self._saved, name))
        return made

    def is_unsaved(self, name: str) -> bool:
        """Whether a topic was made by a send and a crash would still forget it."""
        return name in self._unsaved

    def once_saved(self, name: str, action: Callable[[], None]) -> None:
        """Do something when a topic that was made by a send is on disk; at once if it is."""
        waiting = self._unsaved.get(name)
        if waiting is None:
            action()
        else:
            waiting[1].append(action)

    def _saved(self, name: str) -> None:
        """Also if that failed: the messages are stored, and saving is tried again."""
        syncs, actions = self._unsaved.pop(name, (0, []))
        if syncs > 1:
            self._unsaved[name] = (syncs - 1, actions)
            return
        for action in actions:
            action()

    def _model_for(self, name: str, template: str) -> TopicConfig:
        if not self._options.auto_create_topics:
            raise _no_topic(name, "create it first: this broker creates no topics by itself")
        if not self.is_sendable(name):
            raise _no_topic(name, "it is reserved; use another name")
        model = self._topics.get(template)
        if model is None:
            raise _no_topic(name, f"create it first: there is no model topic {template[:80]!r} either")
        if not model.perm & Permission.INHERIT:
            raise _no_topic(name, f"create it first: {template} may not be taken as a model")
        return model

    def _check_room(self, name: str) -> None:
        most = self._options.auto_topics_max
        if len(self._topics) >= most:
            raise _no_topic(name, f"the broker has {most} topics and creates no more by itself")
        if not self._limit.take():
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"topic {name} is not created: too many topics are being created",
                f"try again; {self._options.create_per_second} per second are created by sends",
            )

    def ensure(
        self, name: str, queues: int, perm: int = int(_READ_WRITE), *, unit_mode: bool = False
    ) -> TopicConfig:
        """The topic; made as asked if there is none. For retry, dead-letter and internal topics."""
        known = self._topics.get(name)
        if known is not None:
            return known
        validate_topic(name)
        flag = UNIT_SUBSCRIPTION_FLAG if unit_mode else 0
        made = replace(_topic(name, queues, Permission(perm)), sys_flag=flag)
        _LOG.info("topic %s is created, %d queues", name, queues)
        self._put(made)
        return made

    def adopt(self, queue_counts: Mapping[str, int]) -> None:
        """Topics that the store has queues of but no config names get one, so that nothing stored is hidden.

        A crash between a first message and the saving of its topic leaves such a topic behind.
        """
        for name, count in queue_counts.items():
            if name not in self._topics and is_topic(name) and name != STAGED_TOPIC:
                _LOG.warning("topic %s has %d queues in the store and no config; it gets one", name, count)
                self._put(_topic(name, count))

    def update(self, config: TopicConfig) -> None:
        """Create or replace, as an operator asked. The caller has checked that it may."""
        validate_topic(config.name)
        most = self._options.topic_queues_max
        if max(config.read_queue_nums, config.write_queue_nums) > most:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, f"topic {config.name} would have more than {most} queues"
            )
        if config.name not in self._topics and len(self._topics) >= self._options.topics_max:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"topic {config.name} is not created: the broker has {len(self._topics)} topics",
                "delete some, or raise topics_max",
            )
        if self._topics.get(config.name) != config:
            self._put(config)

    def delete(self, name: str) -> bool:
        """Forget a topic; whether there was one."""
        if self._topics.pop(name, None) is None:
            return False
        _LOG.info("topic %s is deleted", name)
        self._moved_on(name)
        for listener in self.on_delete:
            listener(name)
        return True

    def copy(self, table: TopicTable, gone: Iterable[str] | None = None) -> None:
        """What a replica does: take a master's topics over, without those `gone`; None: all but these are."""
        if gone is None:
            gone = [name for name in self._topics if name not in table.topics]
        changed = [config for name, config in table.topics.items() if self._topics.get(name) != config]
        lost = [name for name in gone if self._topics.pop(name, None) is not None]
        self._topics.update((config.name, config) for config in changed)
        if not changed and not lost and self._table.data_version == table.data_version:
            return
        self._table.data_version = table.data_version
        names = [config.name for config in changed] + lost
        self.stored.changed(*map(self._table.change_of, names or [""]))
        for config in (*changed, *((None,) if lost else ())):
            for listener in self.on_change:
                listener(config)
        for name in lost:
            for deletion in self.on_delete:
                deletion(name)

    def lead(self, epoch: int) -> None:
        """This broker is master of an epoch: whatever version its table has, it is newer than any before."""
        self._table.data_version = self._table.data_version.next(self._clock.now_ms(), epoch)
        self.stored.changed(self._table.change_of(""))

    def _put(self, config: TopicConfig) -> None:
        self._topics[config.name] = config
        self._moved_on(config.name)

    def _moved_on(self, name: str) -> None:
        self._table.data_version = self._table.data_version.next(self._clock.now_ms())
        self.stored.changed(self._table.change_of(name))
        for listener in self.on_change:
            listener(self._topics.get(name))


def _topic(name: str, queues: int, perm: Permission = _READ_WRITE) -> TopicConfig:
    return TopicConfig(name, queues, queues, perm)


def _no_topic(name: str, hint: str) -> RequestError:
    return RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic {name[:80]!r} does not exist", hint)
