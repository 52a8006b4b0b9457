"""POP (200050), looking without taking (200052), news (200054) and how many wait (200055).

A pop takes up to 32 messages of a topic, from one queue or from all, and from what came back to its group; they are
invisible to others of the group until they are acknowledged or their time is over. It is answered when that is kept
(`pop_service.py`); if there is nothing it waits, at most as long as it asked to. Everything from the wire is checked
before anything is looked at: names, counts, times. Owned by the event loop."""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.broker.attributes import require_plain_queues
from penstock.broker.filtering import Filters, expression_bytes
from penstock.broker.flow_control import refusal_fields
from penstock.broker.groups import Groups
from penstock.broker.options import BrokerOptions
from penstock.broker.partition_leases import PartitionLeases
from penstock.broker.pop_order import ORDERED_QUEUE
from penstock.broker.pop_polling import LATER, Later, PopPolling, Waiting
from penstock.broker.pop_reading import ALL, FROM_FIRST, FROM_LAST, PEEK, Found, Match, PopReader
from penstock.broker.pop_service import PopService
from penstock.broker.statistics import Statistics
from penstock.broker.topics import Topics
from penstock.broker.writing import Written
from penstock.errors import PenstockError, RequestError
from penstock.metadata.topic_table import Permission, TopicConfig
from penstock.protocol.bodies import SubscriptionData
from penstock.protocol.bodies.balance import HOLDER_FIELD
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.pop import (
    NotificationRequestHeader,
    NotificationResponseHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from penstock.protocol.pop_handles import message_offset_info, order_count_info, start_offset_info
from penstock.remoting import Connection, ProcessorTable
from penstock.runtime import Clock

MESSAGES_MAX = 32
# A request that is so much later than it wanted to wait is not worth looking at.
_LATE_MS = 500
REMARK_MAX = 1_000
ATTEMPT_SIZE_MAX = 128


@dataclass(frozen=True, slots=True)
class Pop:
    """A pop that passed its checks."""

    command: Command
    header: PopMessageRequestHeader
    topic: TopicConfig
    match: Match
    started_ms: int
    # What its expression takes while it waits.
    expression_bytes: int


class PopProcessor:
    """Codes 200050, 200052, 200054 and 200055."""

    def __init__(
        self,
        options: BrokerOptions,
        topics: Topics,
        groups: Groups,
        leases: PartitionLeases,
        filters: Filters,
        service: PopService,
        reader: PopReader,
        polling: PopPolling,
        statistics: Statistics,
        clock: Clock,
    ) -> None:
        self.options = options
        self._topics = topics
        self._groups = groups
        self._leases = leases
        self._filters = filters
        self._service = service
        self._reader = reader
        self.polling = polling
        self._statistics = statistics
        self._clock = clock

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self.options = options
        self._filters.reconfigure(options)
        self._reader.reconfigure(options)
        self.polling.reconfigure(options)

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.POP_MESSAGE, self.handle_pop)
        table.register(RequestCode.PEEK_MESSAGE, self.handle_peek)
        table.register(RequestCode.NOTIFICATION, self.handle_notification)
        table.register(RequestCode.POLLING_INFO, self.handle_polling_info)

    # -- checks ----------------------------------------------------------------------------------------------

    def _check(self, group: str, topic: str, queue_id: int) -> TopicConfig:
        """Whether the group may read the topic, or its queue; in RocketMQ's order."""
        self._service.check_ready()
        if not self.options.permission & Permission.READ:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"broker {self.options.broker_name} hands out no messages"
            )
        config = self._topics.get(topic)
        if config is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {topic[:80]!r} does not exist", "create it first"
            )
        if not config.perm & Permission.READ:
            raise RequestError(ResponseCode.NO_PERMISSION, f"topic {config.name} may not be read")
        require_plain_queues(config)
        if not -1 <= queue_id < config.read_queue_nums:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"queue {queue_id} is illegal: topic {config.name} has {config.read_queue_nums} to read",
                "ask for the route again; -1 is all of them",
            )
        settings = self._groups.require(group)
        if not settings.consume_enable:
            raise RequestError(ResponseCode.NO_PERMISSION, f"group {settings.name} may not consume")
        if self._groups.is_read_forbidden(settings.name, config.name):
            raise RequestError(ResponseCode.NO_PERMISSION, f"group {group} is barred from {config.name}")
        return config

    def _check_pop(self, command: Command) -> Pop:
        header = PopMessageRequestHeader.decode(command.fields)
        _check_count(header.max_msg_nums)
        header = replace(header, invisible_time=invisible_time(self.options, header.invisible_time))
        if len(header.attempt_id or "") > ATTEMPT_SIZE_MAX:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"an attempt with a name of {len(header.attempt_id or '')} characters",
                f"use at most {ATTEMPT_SIZE_MAX}",
            )
        config = self._check(header.consumer_group, header.topic, header.queue_id)
        self._service.check_room(header.consumer_group)
        wanted = self._subscription(header)
        match, size = self._match(header, wanted), expression_bytes(wanted)
        return Pop(command, header, config, match, self._clock.monotonic_ms(), size)

    def _check_leases(self, command: Command, header: PopMessageRequestHeader, config: TopicConfig) -> None:
        """Refuse what another of the group holds a lease of: also a pop of all queues, of which some are leased, as
        who balances in two ways would otherwise never hear of it."""
        if not self._leases.has_any(header.consumer_group):
            return
        queues = range(config.read_queue_nums) if header.queue_id < 0 else (header.queue_id,)
        holder = command.fields.get(HOLDER_FIELD)
        for queue_id in queues:
            self._leases.check(header.consumer_group, config.name, queue_id, holder)

    def _subscription(self, header: PopMessageRequestHeader) -> SubscriptionData:
        expression = header.exp or "*"
        if len(expression) > self.options.expression_size_max:
            raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "the expression is too long")
        return SubscriptionData.parse(header.topic, expression, header.exp_type or None)

    def _match(self, header: PopMessageRequestHeader, subscription: SubscriptionData) -> Match:
        wanted = self._filters.of_pull(header.consumer_group, subscription, is_inline=True)
        is_by_tag = subscription.is_tag_type and not subscription.is_all
        attempt = header.attempt_id or "" if header.order else ""
        return Match(subscription.code_set if is_by_tag else None, wanted, attempt)

    # -- pop -------------------------------------------------------------------------------------------------

    def handle_pop(self, connection: Connection, command: Command) -> Command | None:
        pop = self._check_pop(command)
        header = pop.header
        wait_ms = self._wait_ms(header.born_time, header.poll_time)
        if wait_ms is None:
            return command.answer(ResponseCode.POLLING_TIMEOUT, "the request came too late")
        try:
            answer = self._pop(connection, pop, is_final=wait_ms <= 0)
        except PenstockError as error:
            return command.answer(error.code, str(error)[:REMARK_MAX], refusal_fields(error))
        if answer is None:
            waiting = Waiting(
                header.consumer_group,
                pop.topic.name,
                command,
                lambda held_by, is_final: self._pop(held_by, pop, is_final),
                header.queue_id,
                pop.expression_bytes,
            )
            if not self._hold(connection, waiting, wait_ms):
                return command.answer(ResponseCode.POLLING_FULL, "too many pops of this group wait")
        return answer if isinstance(answer, Command) else None

    def _pop(self, connection: Connection, pop: Pop, is_final: bool) -> Command | Later | None:
        """The answer, that it comes later, or that there is none yet."""
        self._service.check_ready()  # also one that was held: another may be master by now
        header = pop.header
        self._check_leases(pop.command, header, pop.topic)
        in_order = bool(header.order)
        group, queue_id = header.consumer_group, header.queue_id
        sources = self._reader.sources(group, pop.topic, queue_id, in_order=in_order)
        init_mode = FROM_FIRST if header.init_mode == FROM_FIRST else FROM_LAST
        found = self._reader.find(sources, header.max_msg_nums, pop.match, init_mode)
        if not found.runs:
            self._statistics.missed()
            if found.is_cut:
                # The next one goes on from here: whoever waits for the rest need not wait for a new message.
                return pop.command.answer(ResponseCode.POLLING_TIMEOUT, "nothing matches so far; ask again")
            if is_final:
                return pop.command.answer(ResponseCode.POLLING_TIMEOUT, "nothing to pop")
            return None

        def done(written: Written, popped_ms: int, revive_queue: int, order_info: str | None = None) -> None:
            if written.error is not None:
                error = written.error
                answer = pop.command.answer(written.code, str(error)[:REMARK_MAX], refusal_fields(error))
            else:
                answer = self._answer(pop, found, popped_ms, revive_queue, order_info)
            connection.answer(pop.command, answer)

        if in_order:
            tries = self._tries(found, pop.match.attempt)
            self._service.ordered.hand_out(
                found.runs,
                header.invisible_time,
                pop.match.attempt,
                lambda written, popped_ms: done(written, popped_ms, ORDERED_QUEUE, order_count_info(tries)),
            )
        else:
            self._service.hand_out(found.runs, header.invisible_time, done)
        return LATER

    def _tries(self, found: Found, attempt: str) -> dict[int, dict[int, int]]:
        """By queue and offset: how often messages were popped before."""
        lots = self._service.ordered.lots
        return {
            run.queue.queue_id: dict(
                zip(run.offsets, lots.tries(run.queue, run.offsets, attempt), strict=True)
            )
            for run in found.runs
        }

    def _answer(
        self, pop: Pop, found: Found, popped_ms: int, revive_queue: int, order_info: str | None
    ) -> Command:
        header = pop.header
        took_ms = self._clock.monotonic_ms() - pop.started_ms
        for run in found.runs:
            self._statistics.got(
                header.consumer_group,
                run.queue.topic,
                run.queue.queue_id,
                len(run.offsets),
                run.size,
                took_ms,
            )
        body = self._reader.body(found.runs, pop.topic.name, popped_ms, header.invisible_time, revive_queue)
        return pop.command.answer(
            fields=_fields(found, popped_ms, header.invisible_time, revive_queue, order_info), body=body
        )

    # -- waiting ---------------------------------------------------------------------------------------------

    def _wait_ms(self, born_ms: int, poll_ms: int) -> int | None:
        """How long a request may wait; None if it has waited too long already. A clock of the client that is ahead of
        ours gives it no more time than it asked for."""
        poll_ms = min(max(poll_ms, 0), self.options.long_poll_max_ms)
        if born_ms <= 0:
            return poll_ms
        left_ms = min(born_ms + poll_ms - self._clock.now_ms(), poll_ms)
        return None if left_ms < -_LATE_MS else max(left_ms, 0)

    def _hold(self, connection: Connection, waiting: Waiting, wait_ms: int) -> bool:
        """Whether there is room for one more that waits."""
        polling, options = self.polling, self.options
        if (
            not polling.is_running
            or polling.held_by(connection) >= options.long_polls_per_connection_max
            or polling.held_for(waiting.group, waiting.topic) >= options.pop_polls_max
        ):
            return False
        polling.hold(connection, waiting, wait_ms)
        return True

    # -- without taking --------------------------------------------------------------------------------------

    def handle_peek(self, connection: Connection, command: Command) -> Command:
        """What a pop would give; nothing is taken."""
        header = PeekMessageRequestHeader.decode(command.fields)
        _check_count(header.max_msg_nums)
        config = self._check(header.consumer_group, header.topic, header.queue_id)
        sources = self._reader.sources(header.consumer_group, config, header.queue_id)
        found = self._reader.find(sources, header.max_msg_nums, ALL, PEEK)
        if not found.runs:
            return command.answer(ResponseCode.PULL_NOT_FOUND, "nothing to pop")
        now_ms = self._clock.now_ms()
        # Times and queue of a pop that never was: a handle made of them names nothing.
        body = self._reader.body(found.runs, config.name, now_ms, 0, 0)
        return command.answer(fields=_fields(found, now_ms, 0, 0), body=body)

    def handle_notification(self, connection: Connection, command: Command) -> Command | None:
        header = NotificationRequestHeader.decode(command.fields)
        config = self._check(header.consumer_group, header.topic, header.queue_id)
        wait_ms = self._wait_ms(header.born_time, header.poll_time) or 0

        def answer(held_by: Connection, is_final: bool) -> Command | None:
            group, queue_id, in_order = header.consumer_group, header.queue_id, bool(header.order)
            attempt = header.attempt_id or "" if in_order else ""
            sources = self._reader.sources(group, config, queue_id, in_order=in_order)
            has_message = any(
                self._reader.waiting(source) and not self._service.ordered.is_held(source.queue, attempt)
                for source in sources
            )
            if not has_message and not is_final:
                return None
            return command.answer(fields=NotificationResponseHeader(has_msg=has_message).encode())

        now = answer(connection, wait_ms <= 0)
        if now is not None:
            return now
        waiting = Waiting(header.consumer_group, config.name, command, answer, header.queue_id)
        if self._hold(connection, waiting, wait_ms):
            return None
        return command.answer(fields=NotificationResponseHeader(has_msg=False, polling_full=True).encode())

    def handle_polling_info(self, connection: Connection, command: Command) -> Command:
        header = PollingInfoRequestHeader.decode(command.fields)
        config = self._check(header.consumer_group, header.topic, header.queue_id)
        held = self.polling.held_for(header.consumer_group, config.name)
        return command.answer(fields=PollingInfoResponseHeader(polling_num=held).encode())


def invisible_time(options: BrokerOptions, asked_ms: int) -> int:
    """How long messages are to be invisible. A shorter time than the least is raised to it: RocketMQ's brokers take
    any, and deliver again after a second at the earliest. One above the maximum is refused (A18)."""
    high = options.pop_invisible_max_ms
    if not 0 <= asked_ms <= high:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"an invisible time of {asked_ms} ms; pop_invisible_max_ms is {high}",
            "ask for a time from 0 to that",
        )
    return max(asked_ms, options.pop_invisible_min_ms)


def _check_count(count: int) -> None:
    if not 1 <= count <= MESSAGES_MAX:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER, f"{count} messages at once", f"ask for 1 to {MESSAGES_MAX}"
        )


def _fields(
    found: Found, popped_ms: int, invisible_ms: int, revive_queue: int, order_info: str | None = None
) -> dict[str, str]:
    header = PopMessageResponseHeader(
        pop_time=popped_ms,
        invisible_time=invisible_ms,
        revive_qid=revive_queue,
        rest_num=found.rest,
        start_offset_info=start_offset_info(
            {(run.kind, run.queue.queue_id): run.start_offset for run in found.runs}
        ),
        msg_offset_info=message_offset_info(
            {(run.kind, run.queue.queue_id): run.offsets for run in found.runs}
        ),
        order_count_info=order_info,
    )
    return header.encode()
