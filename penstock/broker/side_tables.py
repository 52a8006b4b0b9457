"""What replicas need besides the log: topics, groups, consumer offsets and the progress of delays and timers.

They travel with the log's stream (frame 6). A replica gets all of them first, then what changed. Body, JSON:

    {"all": true|false,
     "topics":  topics.json, only topics that changed where not all,     "goneTopics": [names],
     "groups":  subscriptionGroup.json, likewise,                        "goneGroups": [names],
     "offsets": consumerOffset.json, topic@group that changed, each with all its queues,
                                                                         "goneOffsets": ["topic@group"],
     "delays":  delayOffset.json,
     "timers":  {"readMs": up to when, "queueOffset": of the messages before it, all timers were delivered},
     "modes":   messageRequestMode.json, whole,
     "deleted": {topic: where the log ended when it was deleted}}

Rules. A change names the whole value, so that applying it twice, or after a snapshot that has it already, does no
harm. Changes are gathered for a moment; whoever waits for them (`replicated`) has them sent at once. What a client is
told of a group's offset, a commit's answer or the offset itself, every member of the sync-state set has by then: an
election cannot take it back. Progress of delays is sent only for messages that the set has confirmed; a replica that
knew more progress than messages would lose them. A deleted topic is sent at once, and so before any byte of a topic
that is made anew under its name. A replica that cannot read what its master sends drops the
connection, and so does not count as having it. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import json
import logging

from penstock.broker.delay import DelayService
from penstock.broker.groups import Groups
from penstock.broker.offsets import ConsumerOffsets
from penstock.broker.request_modes import RequestModes
from penstock.broker.table_journal import OLD_FILE_NAME, TableJournal
from penstock.broker.timer import TimerService
from penstock.broker.timer_progress import TimerProgress
from penstock.broker.topics import Topics
from penstock.errors import CodecError, RequestError, StoreError
from penstock.metadata.fastjson import JsonObject, loads
from penstock.metadata.group_table import SubscriptionGroupTable
from penstock.metadata.json_fields import INT64_MAX, JsonFields
from penstock.metadata.offset_table import ConsumerOffsetTable, DelayOffsetTable, TopicGroup
from penstock.metadata.request_mode_table import RequestModeTable
from penstock.metadata.topic_table import TopicConfig, TopicTable
from penstock.protocol.codes import ResponseCode
from penstock.replication import HaServer, Outcome
from penstock.store import MessageStore

_LOG = logging.getLogger("penstock.broker")
GATHER_MS = 50
# The one table here without a JSON file; its own file is written once a second.
_TIMERS = "timers"
_BODY_BYTES_MAX = 256 << 20


class SideTables:
    """See the module's text. `server` is there while this broker is master."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        delays: DelayService,
        timers: TimerService,
        journal: TableJournal,
        modes: RequestModes | None = None,
    ) -> None:
        self._journal = journal
        self._modes = modes
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delays = delays
        self._timers = timers
        self._server: HaServer | None = None
        self._dirty_topics: set[str] = set()
        self._dirty_groups: set[str] = set()
        self._dirty_offsets: set[TopicGroup] = set()
        self._told_delays: dict[int, int] = {}
        self._told_timers = TimerProgress()
        self._has_new_modes = False
        self._timer: asyncio.TimerHandle | None = None
        topics.on_change.append(self._topic_changed)
        topics.on_delete.append(self._topic_deleted)
        groups.on_change.append(self._group_changed)
        offsets.on_change.append(self._offset_changed)
        topics.replicated = groups.replicated = offsets.replicated = self.replicated
        if modes is not None:
            modes.on_change.append(self._mode_changed)
            modes.replicated = self.replicated

    # -- master's side ---------------------------------------------------------------------------------------

    def lead(self, server: HaServer) -> None:
        """This broker is master; replicas get all that there is when they connect."""
        self._server = server
        self._forget()

    def step_down(self) -> None:
        self._server = None
        self._forget()

    def _forget(self) -> None:
        for dirty in (self._dirty_topics, self._dirty_groups, self._dirty_offsets):
            dirty.clear()
        self._has_new_modes = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _topic_changed(self, config: TopicConfig | None) -> None:
        if self._server is not None and config is not None:
            self._dirty_topics.add(config.name)
            self._soon()

    def _topic_deleted(self, name: str) -> None:
        if self._server is not None:
            self._dirty_topics.add(name)
            self.send()

    def _group_changed(self, name: str) -> None:
        if self._server is not None:
            self._dirty_groups.add(name)
            self._soon()

    def _offset_changed(self, key: TopicGroup) -> None:
        if self._server is not None:
            self._dirty_offsets.add(key)
            self._soon()

    def _mode_changed(self) -> None:
        if self._server is not None:
            self._has_new_modes = True
            self._soon()

    def _soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_MS / 1000, self.send)

    def send(self) -> None:
        """Send what has changed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        server = self._server
        if server is None or server.tracker is None:
            return
        has_changes = self._dirty_topics or self._dirty_groups or self._dirty_offsets or self._has_new_modes
        is_further = self._timers.saver.safe != self._told_timers
        if has_changes or is_further or self._delays.progress().offsets != self._told_delays:
            self._send_to(server)

    def _send_to(self, server: HaServer) -> None:
        delays = self._delays.progress()
        self._told_delays = delays.offsets
        self._told_timers = self._timers.saver.safe
        body = self._changes(delays)
        try:
            self._journal.carry(_TIMERS, self._timers_json())
        except StoreError as error:
            _LOG.error("progress of the timers is not kept for a restart: %s", error)
        server.send_tables(body)
        self._forget()

    def _changes(self, delays: DelayOffsetTable) -> bytes:
        topics, groups = self._topics.all(), self._groups.all()
        forbidden = {name: dict(barred) for name, barred in self._groups.forbidden().items()}
        offset_table = self._offsets.snapshot_of(self._dirty_offsets)
        changed_topics = {name: topics[name] for name in self._dirty_topics if name in topics}
        changed_groups = {name: groups[name] for name in self._dirty_groups if name in groups}
        body: JsonObject = {
            "all": False,
            "topics": TopicTable(self._topics.data_version, changed_topics).to_json(),
            "goneTopics": [*sorted(self._dirty_topics - changed_topics.keys())],
            "groups": SubscriptionGroupTable(self._groups.data_version, changed_groups, forbidden).to_json(),
            "goneGroups": [*sorted(self._dirty_groups - changed_groups.keys())],
            "offsets": offset_table.to_json(),
            "goneOffsets": [str(key) for key in sorted(self._dirty_offsets - offset_table.offsets.keys())],
            "delays": delays.to_json(),
            "timers": self._timers_json(),
            "deleted": {
                name: at for name, at in self._store.deleted_topics.items() if name in self._dirty_topics
            },
        }
        if self._modes is not None and self._has_new_modes:
            body["modes"] = self._modes.snapshot().to_json()
        return json.dumps(body, separators=(",", ":")).encode()

    def snapshot(self) -> bytes:
        """All tables as they are now."""
        body: JsonObject = {
            "all": True,
            "topics": TopicTable(self._topics.data_version, dict(self._topics.all())).to_json(),
            "groups": self._groups.snapshot().to_json(),
            "offsets": self._offsets.snapshot().to_json(),
            "delays": self._delays.progress().to_json(),
            "timers": self._timers_json(),
            "deleted": {**self._store.deleted_topics},
        }
        if self._modes is not None:
            body["modes"] = self._modes.snapshot().to_json()
        return json.dumps(body, separators=(",", ":")).encode()

    def _timers_json(self) -> JsonObject:
        safe = self._timers.saver.safe
        return {"readMs": safe.read_ms, "queueOffset": safe.queue_offset}

    def check_master(self) -> None:
        """Refuse where this broker is not master: what it were told would be lost, and what it says may be old."""
        if self._server is None:
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "this broker is not master now: offsets are kept by the master",
                "ask for the route again",
            )

    @property
    def must_wait(self) -> bool:
        """Whether others than this broker could be elected, and so have to know what a client is told."""
        tracker = None if self._server is None else self._server.tracker
        return tracker is None or not tracker.is_alone

    async def prove(self) -> None:
        """Wait until every member of the sync-state set has answered, from now on: then nobody was elected before
        that, as whoever is elected answers an older master no more. Raises RequestError where they do not."""
        if self.must_wait and self._server is not None:
            self._send_to(self._server)
        await self.replicated()

    async def replicated(self) -> None:
        """Wait until every member of the sync-state set has all changes so far. Raises RequestError if that fails:
        nobody may be told of them then."""
        if not self.must_wait:
            return
        self.send()
        server = self._server
        if server is None or server.tracker is None:
            raise _not_safe("this broker is not master any more")
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def settle(outcome: Outcome) -> None:
            if not future.done():
                future.set_result(outcome)

        server.when_tables_replicated(server.tracker.tables_sequence, settle)
        outcome = await future
        if outcome is Outcome.TIMED_OUT:
            raise _not_safe("the replicas did not take the offset in time")
        if outcome is Outcome.SUPERSEDED:
            raise _not_safe("this broker stopped being master meanwhile")

    # -- replica's side --------------------------------------------------------------------------------------

    def apply(self, data: bytes) -> None:
        """Take over what a master sent, and keep it: each table writes what changed to the journal. Raises CodecError
        for what cannot be read, StoreError for what cannot be kept."""
        self._take_over(data)
        owners = (self._topics, self._groups, self._offsets, self._delays, self._modes)
        if not all(owner.stored.is_kept for owner in owners if owner is not None):
            raise StoreError(
                "what the master sent is not kept: the journal cannot be written", "check the disk"
            )

    # -- start and end ---------------------------------------------------------------------------------------

    def recover(self) -> None:
        """At the start, when the tables are loaded: what the journal has besides them, and what 0.1 left in its
        own."""
        for change in self._journal.carried(_TIMERS):
            self._follow_timers(JsonFields(change, "the journal of the tables"))
        for body in self._journal.left_by_0_1():
            try:
                self._take_over(body)
            except (CodecError, StoreError) as error:
                _LOG.error("a change in %s cannot be taken over: %s", OLD_FILE_NAME, error)
                break

    def _take_over(self, data: bytes) -> None:
        fields = JsonFields(
            loads(data, source="side tables", max_bytes=_BODY_BYTES_MAX, max_loose=0), "side tables"
        )
        is_all = fields.boolean("all", False)
        topics = TopicTable.from_json(fields.value("topics"), "topics")
        groups = SubscriptionGroupTable.from_json(fields.value("groups"), "groups")
        offsets = ConsumerOffsetTable.from_json(fields.value("offsets"), "offsets")
        delays = DelayOffsetTable.from_json(fields.value("delays"), "delays")
        # Masters of an earlier version have none.
        modes = RequestModeTable.from_json(fields.value("modes"), "modes") if fields.has("modes") else None
        gone_offsets = [
            TopicGroup(*name.split("@", 1)) for name in fields.text_list("goneOffsets") if "@" in name
        ]
        timers, deleted = fields.inner("timers"), fields.inner("deleted")
        positions = {} if deleted is None else deleted.named_integers(0, INT64_MAX)
        self._store.follow_deletions(positions)
        self._topics.copy(topics, None if is_all else fields.text_list("goneTopics"))
        self._groups.copy(groups, None if is_all else fields.text_list("goneGroups"))
        self._offsets.copy(offsets, None if is_all else gone_offsets)
        self._delays.follow(delays)
        if timers is not None:
            self._follow_timers(timers)
            self._journal.carry(_TIMERS, self._timers_json())
        if modes is not None and self._modes is not None:
            self._modes.copy(modes)

    def _follow_timers(self, fields: JsonFields) -> None:
        read_ms = fields.integer("readMs", 0, 0, INT64_MAX)
        self._timers.follow(TimerProgress(read_ms, fields.integer("queueOffset", 0, 0, INT64_MAX)))


def _not_safe(why: str) -> RequestError:
    return RequestError(
        ResponseCode.SERVICE_NOT_AVAILABLE,
        f"the offset is not known to outlive this master: {why}",
        "ask again; if it repeats, ask for the route again",
    )
