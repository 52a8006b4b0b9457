"""Pulls (11, and 361 of the lite consumer): messages of one queue from an offset on, or waiting for some.

    checks      in RocketMQ's order, each with its code (`_check`, `_subscription`)
    reading     one gathered run of records, within the limits for memory or disk; filtered by tag code, or by an
                SQL92 expression over the properties (`broker/filtering.py`)
    batches     Penstock's consumers say that they take more messages than RocketMQ's limit (`PULL_FIELD`)
    scans       of Penstock's tools and of Spark say so there as well, and have limits of their own; what they want
                from disk is brought into memory by a thread first, so that other requests do not wait for the disk.
                They may ask for columns instead of records (`message/column_answers.py`)
    nothing     answered with 19, 20 or 21, or held by `LongPolling` until something may match
    commit      bit 0 commits the consumer's offset, on the first try only
    where       every answer says which broker of the set to ask next: the master, or a slave for what lies so far
                behind that the master would have to read it from disk

A slave answers as a master does, and moves nobody: an offset that it has not got, yet or any more, its master may
have. While the master is there, a consumer that is not far behind is sent to it, at once if there is nothing here;
while it is gone, the slave names itself and holds pulls until more comes.

Offsets from the wire are compared, never computed with: negative and huge ones get the answers of RocketMQ's
table (A16). What was read leaves as the buffer it was gathered into. Owned by the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

from penstock.broker.attributes import require_plain_queues
from penstock.broker.consumers import Consumers
from penstock.broker.filtering import Filters, PullFilter, expression_bytes
from penstock.broker.flow_control import BusyError, FlowControl
from penstock.broker.groups import GroupConfig, Groups
from penstock.broker.long_polling import HeldPull, LongPolling
from penstock.broker.offsets import ConsumerOffsets
from penstock.broker.options import BrokerOptions
from penstock.broker.partition_leases import PartitionLeases
from penstock.broker.statistics import Statistics
from penstock.broker.store_times import memory_window
from penstock.broker.topics import Topics
from penstock.errors import PenstockError, RequestError
from penstock.message.column_answers import CAN_SPEAK, COLUMNS_FIELD, NAMES, STORED_FIELD
from penstock.metadata.topic_table import Permission, TopicConfig
from penstock.protocol.bodies import MessageModel, SubscriptionData
from penstock.protocol.bodies.balance import HOLDER_FIELD
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import PULL_BATCH, PULL_FIELD, PULL_SCAN, PullMessageRequestHeader, PullSysFlag
from penstock.remoting import Connection, ProcessorTable
from penstock.runtime import Clock
from penstock.store import GetResult, GetStatus, MessageStore

MASTER_ID = 0
_RESET = "OFFSET_RESET"
# Flags as plain numbers: arithmetic with an enumeration's members costs a microsecond each time.
_READ = int(Permission.READ)
_COMMIT, _SUSPEND, _EXPRESSION = map(
    int, (PullSysFlag.COMMIT_OFFSET, PullSysFlag.SUSPEND, PullSysFlag.SUBSCRIPTION)
)
_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
# Values of `forbiddenType` beside code 16.
BROKER_FORBIDDEN, GROUP_FORBIDDEN, TOPIC_FORBIDDEN, BROADCAST_FORBIDDEN, SUBSCRIPTION_FORBIDDEN = range(1, 6)


class ForbiddenError(RequestError):
    """Reading is not allowed; the answer says on whose account."""

    def __init__(self, kind: int, message: str, hint: str = "") -> None:
        super().__init__(ResponseCode.NO_PERMISSION, message, hint)
        self.kind = kind


@dataclass(slots=True)
class Pull:
    """A pull that passed its checks. `offset` moves on while it is held and nothing matches."""

    command: Command
    header: PullMessageRequestHeader
    subscription: SubscriptionData
    # What queue entries must hold; None for every message.
    codes: frozenset[int] | None
    # What their records must pass; None where tags alone decide.
    wanted: PullFilter | None
    topic_flag: int
    group: GroupConfig
    offset: int
    started_ms: int
    # In which a scan wants its answer; empty for records.
    columns: tuple[str, ...] = ()


class PullProcessor:
    """Codes 11 and 361."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        consumers: Consumers,
        offsets: ConsumerOffsets,
        leases: PartitionLeases,
        flow: FlowControl,
        statistics: Statistics,
        clock: Clock,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._offsets = offsets
        self._leases = leases
        self._flow = flow
        self._statistics = statistics
        self._clock = clock
        self._filters = Filters(options, consumers, clock)
        # Whether this slave's master is there, and whether this master has a slave that is in sync.
        self.has_master: Callable[[], bool] = _never
        self.has_slaves: Callable[[], bool] = _never
        self.polling: LongPolling[Pull] = LongPolling(options, clock, self._retry)
        self.reconfigure(options)

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self.options = self.polling.options = options
        self._filters.reconfigure(options)
        self._memory_window = memory_window(options.memory_percent)

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.PULL_MESSAGE, self.handle_pull)
        table.register(RequestCode.LITE_PULL_MESSAGE, self.handle_pull)

    def handle_pull(
        self, connection: Connection, command: Command
    ) -> Command | Awaitable[Command | None] | None:
        try:
            pull = self._check(command)
            is_long = pull.wanted is not None or _is_scan(pull)
            if is_long and not self._is_in_memory(pull):
                return self._scan_from_disk(connection, pull)
            return self._answer(connection, pull)
        except ForbiddenError as error:
            return command.answer(error.code, str(error), {"forbiddenType": str(error.kind)})
        except BusyError as error:
            return command.answer(error.code, str(error), error.fields)

    # -- checks ----------------------------------------------------------------------------------------------

    def _check(self, command: Command) -> Pull:
        options = self.options
        if options.is_slave and not options.slave_reads:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"[REJECTREQUEST]{options.broker_name} with id {options.broker_id} is a slave that hands out nothing",
                "pull from the master, which has id 0, or set slave_reads",
            )
        header = PullMessageRequestHeader.decode(command.fields)
        if not int(options.permission) & _READ:
            raise ForbiddenError(BROKER_FORBIDDEN, f"broker {options.broker_name} hands out no messages")
        if command.code == RequestCode.LITE_PULL_MESSAGE and not options.lite_pull:
            raise ForbiddenError(BROKER_FORBIDDEN, "this broker does not serve the lite pull consumer")
        group = self._groups.require(header.consumer_group)
        if not group.consume_enable:
            raise ForbiddenError(GROUP_FORBIDDEN, f"group {group.name} may not consume")
        config = self._readable_topic(header)
        self._leases.check(group.name, config.name, header.queue_id, command.fields.get(HOLDER_FIELD))
        subscription = self._subscription(header, group)
        is_inline = bool(header.sys_flag & _EXPRESSION)
        return Pull(
            command,
            header,
            subscription,
            _wanted_codes(subscription),
            self._filters.of_pull(group.name, subscription, is_inline=is_inline),
            config.sys_flag,
            group,
            header.queue_offset,
            self._clock.monotonic_ms(),
            _columns(command),
        )

    def _readable_topic(self, header: PullMessageRequestHeader) -> TopicConfig:
        config = self._topics.get(header.topic)
        if config is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {header.topic[:80]!r} does not exist", "create it first"
            )
        if not int(config.perm) & _READ:
            raise ForbiddenError(TOPIC_FORBIDDEN, f"topic {config.name} may not be read")
        require_plain_queues(config)
        if not 0 <= header.queue_id < config.read_queue_nums:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"queue {header.queue_id} is illegal: topic {config.name} has {config.read_queue_nums} to read",
                "ask for the route again",
            )
        return config

    def _subscription(self, header: PullMessageRequestHeader, config: GroupConfig) -> SubscriptionData:
        if header.sys_flag & _EXPRESSION:
            expression = header.subscription or ""
            if len(expression) > self.options.expression_size_max:
                raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "the expression is too long")
            return SubscriptionData.parse(header.topic, expression, header.expression_type)
        group = self._consumers.group(config.name)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"no consumer of group {config.name} is registered",
                "a heartbeat has to come first",
            )
        if not config.consume_broadcast_enable and group.message_model == MessageModel.BROADCASTING:
            raise ForbiddenError(BROADCAST_FORBIDDEN, f"group {config.name} may not broadcast")
        if self._groups.is_read_forbidden(config.name, header.topic):
            raise ForbiddenError(SUBSCRIPTION_FORBIDDEN, f"group {config.name} is barred from {header.topic}")
        subscription = group.subscription(header.topic)
        if subscription is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"group {config.name} has not subscribed to {header.topic}",
                "all consumers of a group must have the same subscriptions",
            )
        if subscription.sub_version < header.sub_version:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the subscription of group {config.name} to {header.topic} is older than the consumer's",
                "send a heartbeat",
            )
        return subscription

    # -- reading ---------------------------------------------------------------------------------------------

    def _answer(self, connection: Connection, pull: Pull) -> Command | None:
        """The first try: answer, or hold."""
        header = pull.header
        moved = self._reset(pull)
        if moved is not None:
            return moved
        result = self._get(pull, connection.answer_room)
        if header.sys_flag & _COMMIT and header.commit_offset >= 0 and not self.options.is_slave:
            self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        code, result = self._outcome(pull, result)
        is_at_end = code == ResponseCode.PULL_NOT_FOUND and result.status is not GetStatus.OFFSET_FOUND_NULL
        if is_at_end and header.sys_flag & _SUSPEND and self.polling.is_running:
            self._hold(connection, pull)
            return None
        return self._response(pull, result, code)

    def _get(self, pull: Pull, room: int) -> GetResult:
        header = pull.header
        count, size = self._limits(pull, room)
        wanted = pull.wanted
        if wanted is not None:
            wanted.begin()
        elif pull.columns and pull.codes is None and _is_scan(pull):
            found = self._store.reader.get_columns(
                header.topic, header.queue_id, pull.offset, count, size, pull.columns
            )
            if found is not None:
                return found
        return self._store.get(header.topic, header.queue_id, pull.offset, count, size, pull.codes, wanted)

    def _limits(self, pull: Pull, room: int) -> tuple[int, int]:
        """Messages and bytes that the answer may have; a scan gets less where little memory is left."""
        header, options = pull.header, self.options
        if _is_scan(pull):
            count, size = (
                options.scan_count_max,
                min(options.scan_bytes_max, max(room, options.pull_bytes_memory_max)),
            )
        elif self._is_in_memory(pull):
            is_batch = pull.command.fields.get(PULL_FIELD) == PULL_BATCH
            count = options.pull_count_batch_max if is_batch else options.pull_count_memory_max
            size = options.pull_bytes_memory_max
        else:
            count, size = options.pull_count_disk_max, options.pull_bytes_disk_max
        if header.max_msg_bytes is not None and header.max_msg_bytes > 0:
            size = min(size, header.max_msg_bytes)
        return min(max(header.max_msg_nums, 1), count), size

    async def _scan_from_disk(self, connection: Connection, pull: Pull) -> None:
        header = pull.header
        count, size = self._limits(pull, connection.answer_room)
        warm = partial(
            self._store.reader.warm,
            *(header.topic, header.queue_id, pull.offset, count, size, pull.codes, pull.wanted),
        )
        await connection.in_thread(lambda: warm)
        try:
            answer = await connection.in_turn(lambda: self._answer(connection, pull))
        except BusyError as error:
            answer = pull.command.answer(error.code, str(error), error.fields)
        if answer is not None:
            connection.answer(
                pull.command, answer
            )  # it may have waited long: the right to it is checked again

    def _is_in_memory(self, pull: Pull) -> bool:
        """Whether the first record lies in the part of the log that the page cache should still hold."""
        log = self._store.log
        room = self._memory_window
        if log.max_offset - log.min_offset <= room:
            return True
        first = self._store.reader.entries(pull.header.topic, pull.header.queue_id, pull.offset, 1)
        return not first or log.max_offset - first[0].position <= room

    def _outcome(self, pull: Pull, result: GetResult) -> tuple[ResponseCode, GetResult]:
        code = _CODES.get(result.status)
        if code is None:
            # No such queue, or nothing in it: only an offset of 0 is right for that.
            code = ResponseCode.PULL_NOT_FOUND if pull.offset == 0 else ResponseCode.PULL_OFFSET_MOVED
        if not self.options.is_slave or code == ResponseCode.SUCCESS:
            return code, result
        if code == ResponseCode.PULL_OFFSET_MOVED:
            code, result = ResponseCode.PULL_NOT_FOUND, replace(result, next_offset=pull.offset)
        if self._whom_to_ask(pull) == MASTER_ID:
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
        return code, result

    def _whom_to_ask(self, pull: Pull) -> int:
        """The broker of the set that the next pull should go to."""
        options, group = self.options, pull.group
        if options.is_slave:
            is_at_home = group.broker_id == options.broker_id or not self.has_master()
            return options.broker_id if is_at_home or not self._is_in_memory(pull) else MASTER_ID
        if not options.slave_reads or not self.has_slaves():
            return MASTER_ID
        return group.broker_id if self._is_in_memory(pull) else group.which_broker_when_consume_slowly

    def _response(self, pull: Pull, result: GetResult, code: ResponseCode) -> Command:
        header = pull.header
        self._offsets.commit_pull(header.consumer_group, header.topic, header.queue_id, result.next_offset)
        if result.count:
            took_ms = self._clock.monotonic_ms() - pull.started_ms
            self._statistics.got(
                *(header.consumer_group, header.topic, header.queue_id, result.count),
                result.stored_bytes or len(result.data),
                took_ms,
            )
        else:
            self._statistics.missed()
        fields = self._fields(pull, result.next_offset, result.min_offset, result.max_offset)
        if result.stored_bytes:
            fields |= {COLUMNS_FIELD: ",".join(pull.columns), STORED_FIELD: str(result.stored_bytes)}
        return pull.command.answer(code, result.status.name, fields, result.data)

    def _fields(self, pull: Pull, following: int, low: int, high: int) -> dict[str, str]:
        return {
            "suggestWhichBrokerId": str(self._whom_to_ask(pull)),
            "nextBeginOffset": str(following),
            "minOffset": str(low),
            "maxOffset": str(high),
            "topicSysFlag": str(pull.topic_flag),
            "groupSysFlag": str(pull.group.sys_flag),
        }

    def _reset(self, pull: Pull) -> Command | None:
        """The answer that moves a consumer to where an operator wants it; None if nobody does."""
        header = pull.header
        target = self._offsets.take_reset(header.consumer_group, header.topic, header.queue_id)
        if target is None or not self.options.server_side_reset:
            return None
        low = self._store.min_offset(header.topic, header.queue_id)
        high = self._store.max_offset(header.topic, header.queue_id)
        fields = self._fields(pull, target, low, high)
        return pull.command.answer(ResponseCode.PULL_OFFSET_MOVED, _RESET, fields)

    # -- for deliveries: what may be pulled may be pushed (push_service.py) ------------------------------------

    def admit(self, command: Command, offset: int | None = None) -> Pull:
        """Check a request with a pull's fields as a pull is checked; raises RequestError."""
        pull = self._check(command)
        pull.offset = pull.offset if offset is None else offset
        return pull

    def read(self, pull: Pull, count: int, size: int) -> tuple[ResponseCode, GetResult]:
        """What a pull would be answered now, within its limits and these; never held, nothing committed."""
        header = pull.header
        moved = self._offsets.take_reset(header.consumer_group, header.topic, header.queue_id)
        if moved is not None and self.options.server_side_reset:
            return ResponseCode.PULL_OFFSET_MOVED, GetResult(GetStatus.OFFSET_TOO_SMALL, moved, 0, 0)
        options = self.options
        most, largest = options.pull_count_disk_max, options.pull_bytes_disk_max
        if self._is_in_memory(pull):
            most, largest = options.pull_count_batch_max, options.pull_bytes_memory_max
        if pull.wanted is not None:
            pull.wanted.begin()
        result = self._store.get(
            *(header.topic, header.queue_id, pull.offset, min(count, most), min(size, largest)),
            *(pull.codes, pull.wanted),
        )
        code, result = self._outcome(pull, result)
        self._response(pull, result, code)
        return code, result

    # -- waiting ---------------------------------------------------------------------------------------------

    def _hold(self, connection: Connection, pull: Pull) -> None:
        header, options = pull.header, self.options
        held = self.polling.held_by(connection)
        if held >= options.long_polls_per_connection_max:
            raise self._flow.polls_full(held)
        if options.long_polling:
            wait_ms = min(max(header.suspend_timeout_millis, 0), options.long_poll_max_ms)
        else:
            wait_ms = options.short_polling_ms
        size = pull.command.size + expression_bytes(pull.subscription)
        self.polling.hold(connection, header.topic, header.queue_id, pull, wait_ms, size)
        if self._has_news(pull):  # made visible by another thread since we looked
            self.polling.wake(header.topic, header.queue_id)

    def _has_news(self, pull: Pull) -> bool:
        return self._store.max_offset(pull.header.topic, pull.header.queue_id) > pull.offset

    def _retry(self, held: HeldPull[Pull], is_final: bool) -> bool:
        """Try a held pull again; whether it was answered. Never raises: it is called from timers."""
        connection, pull = held.connection, held.pull
        if not connection.is_open:
            return True
        try:
            answer = self._later(pull, connection.answer_room, is_final)
        except PenstockError as error:
            answer = pull.command.answer(error.code, str(error))
        if answer is None:
            return False
        connection.answer(pull.command, answer)
        return True

    def _later(self, pull: Pull, room: int, is_final: bool) -> Command | None:
        header = pull.header
        if self._offsets.has_reset(header.consumer_group, header.topic, header.queue_id):
            moved = self._reset(pull)
            if moved is not None:
                return moved
        self._follow_group(pull)
        while is_final or self._has_news(pull):
            result = self._get(pull, room)
            skipped = result.status in (GetStatus.NO_MATCHED_MESSAGE, GetStatus.OFFSET_FOUND_NULL)
            if skipped and result.next_offset > pull.offset and result.next_offset < result.max_offset:
                if pull.wanted is not None and result.status is GetStatus.NO_MATCHED_MESSAGE:
                    return self._last(pull, result)  # it has looked at as much as one pull may
                pull.offset = result.next_offset
            elif is_final or not skipped:
                return self._last(pull, result)
            else:
                pull.offset = result.next_offset
                return None
        return None

    def _follow_group(self, pull: Pull) -> None:
        """A group may change its expression while its pulls wait: what comes from now on is chosen by the new one."""
        online = self._consumers.group(pull.group.name)
        if pull.header.sys_flag & _EXPRESSION or online is None:
            return
        subscription = online.subscription(pull.header.topic)
        if subscription is not None and subscription is not pull.subscription:
            pull.subscription = subscription
            pull.codes = _wanted_codes(subscription)
            pull.wanted = self._filters.of_pull(online.name, subscription, is_inline=False)

    def _last(self, pull: Pull, result: GetResult) -> Command:
        code, result = self._outcome(pull, result)
        if code == ResponseCode.PULL_NOT_FOUND and pull.offset > pull.header.queue_offset:
            code = (
                ResponseCode.PULL_RETRY_IMMEDIATELY
            )  # what was skipped while waiting need not be read again
        return self._response(pull, result, code)


def _never() -> bool:
    return False


def _wanted_codes(subscription: SubscriptionData) -> frozenset[int] | None:
    """Some clients send only the expression, without the codes that follow from it."""
    if subscription.is_all or not subscription.is_tag_type:
        return None
    return (
        subscription.code_set or SubscriptionData.parse(subscription.topic, subscription.sub_string).code_set
    )


def _is_scan(pull: Pull) -> bool:
    return pull.command.fields.get(PULL_FIELD) == PULL_SCAN


def _columns(command: Command) -> tuple[str, ...]:
    """Columns that are asked for, each of them once; none where one is not known here, as to a newer client, who
    then gets the records that an older broker would send."""
    text = command.fields.get(COLUMNS_FIELD, "")
    names = tuple(dict.fromkeys(text.split(","))) if text and CAN_SPEAK else ()
    return names if NAMES.issuperset(names) else ()
