"""The broker itself, for operators: settings (25, 26), numbers (28, 315), delays (45), cleaning (306, 329), HA (907).

Settings change only from this machine unless told otherwise, only by the allow list of `config_keys.py`, and
each change leaves a line in the log. They hold until the next restart. Owned by the event loop.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable

from penstock import __version__
from penstock.broker import config_keys
from penstock.broker.delay import DelayService
from penstock.broker.flow_control import FlowControl
from penstock.broker.long_polling import LongPolling
from penstock.broker.options import BrokerOptions
from penstock.broker.processors.pull import Pull
from penstock.broker.statistics import NAMES, Statistics
from penstock.broker.store_times import first_stored_ms
from penstock.broker.timer import TimerService
from penstock.errors import RequestError
from penstock.metadata.config_files import DataVersion
from penstock.metadata.fastjson import dump_compact
from penstock.protocol.bodies import BrokerStatsData, BrokerStatsItem, HARuntimeInfo, KVTable
from penstock.protocol.codes import CURRENT_VERSION, RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import GetBrokerConfigResponseHeader, ViewBrokerStatsDataRequestHeader
from penstock.protocol.topic_names import SCHEDULE_TOPIC
from penstock.remoting import Connection, ProcessorTable
from penstock.runtime import Runtime
from penstock.store import MessageStore

_AUDIT = logging.getLogger("penstock.audit")


class BrokerAdminProcessor:
    """Codes 25, 26, 28, 45, 306, 315, 329 and 907."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        statistics: Statistics,
        flow: FlowControl,
        polling: LongPolling[Pull],
        delay: DelayService,
        timers: TimerService,
        runtime: Runtime,
        apply: Callable[[BrokerOptions], None],
    ) -> None:
        self._options = options
        self._store = store
        self._statistics = statistics
        self._flow = flow
        self._polling = polling
        self._delay = delay
        self._timers = timers
        self._runtime = runtime
        self._apply = apply
        self._version = DataVersion(0, 0, runtime.clock.now_ms())

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self._options = options

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.UPDATE_BROKER_CONFIG, self.handle_update_config)
        table.register(RequestCode.GET_BROKER_CONFIG, self.handle_get_config)
        table.register(RequestCode.GET_BROKER_RUNTIME_INFO, self.handle_runtime_info)
        table.register(RequestCode.GET_ALL_DELAY_OFFSET, self.handle_delay_offsets)
        table.register(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, self.handle_clean_queues)
        table.register(RequestCode.VIEW_BROKER_STATS_DATA, self.handle_view_stats)
        table.register(RequestCode.DELETE_EXPIRED_COMMITLOG, self.handle_delete_expired)
        table.register(RequestCode.GET_BROKER_HA_STATUS, self.handle_ha_status)

    # -- settings --------------------------------------------------------------------------------------------

    def handle_update_config(self, connection: Connection, command: Command) -> Command:
        if not self._options.remote_settings and not ipaddress.ip_address(connection.peer.ip).is_loopback:
            _AUDIT.warning("settings refused from %s: not this machine", connection.peer)
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                "settings may be changed from the broker's own machine only",
                "do it there, or start the broker with remote_settings",
            )
        pairs = config_keys.parse_lines(bytes(command.body))
        if not pairs:
            return command.answer()
        before, after = self._options, config_keys.changed(self._options, pairs)
        for key in sorted(pairs):
            name = config_keys.BROKER_KEYS[key]
            _AUDIT.info(
                "%s sets %s from %s to %s", connection.peer, key, getattr(before, name), getattr(after, name)
            )
        self._version = self._version.next(self._runtime.clock.now_ms())
        self._apply(after)
        return command.answer()

    def handle_get_config(self, connection: Connection, command: Command) -> Command:
        version = GetBrokerConfigResponseHeader(version=dump_compact(self._version.to_json()).decode())
        body = config_keys.as_lines(self._options, self._store.options)
        return command.answer(fields=version.encode(), body=body)

    # -- numbers ---------------------------------------------------------------------------------------------

    def handle_view_stats(self, connection: Connection, command: Command) -> Command:
        header = ViewBrokerStatsDataRequestHeader.decode(command.fields)
        if header.stats_name not in NAMES:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"there are no statistics {header.stats_name[:80]!r}",
                f"there are: {', '.join(NAMES)}",
            )
        item = self._statistics.find(header.stats_name, header.stats_key)
        if item is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"nothing was counted in {header.stats_name} under {header.stats_key[:120]!r}",
            )
        now_ms = self._runtime.clock.monotonic_ms()
        spans = [item.window(span, now_ms) for span in range(3)]
        body = BrokerStatsData(*(BrokerStatsItem(w.total, w.per_second, w.average) for w in spans))
        return command.answer(body=body.encode())

    def handle_runtime_info(self, connection: Connection, command: Command) -> Command:
        table = {
            **self._about_broker(),
            **self._about_traffic(),
            **self._about_store(),
            **self._about_queues(),
            **self._about_delays(),
        }
        return command.answer(body=KVTable(table).encode())

    def _about_broker(self) -> dict[str, str]:
        statistics = self._statistics
        seconds = (self._runtime.clock.now_ms() - statistics.started_ms) // 1_000
        days, hours, minutes = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60
        return {
            "brokerActive": "true",
            "brokerVersion": str(CURRENT_VERSION),
            # Without a blank: scripts that cut mqadmin's columns apart count them.
            "brokerVersionDesc": f"V5_3_3-penstock-{__version__}",
            "bootTimestamp": str(statistics.started_ms),
            "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]",
            "startAcceptSendRequestTimeStamp": str(self._options.accept_sends_from_ms),
        }

    def _about_traffic(self) -> dict[str, str]:
        statistics = self._statistics
        puts, gets = statistics.puts.value, statistics.gets_transferred.value
        size = statistics.put_bytes.value
        latencies = statistics.put_latencies
        return {
            "putMessageEntireTimeMax": str(latencies.maximum_ms),
            "putMessageTimesTotal": str(puts),
            "putMessageFailedTimes": str(statistics.put_failures),
            "putMessageSizeTotal": str(size),
            "putMessageDistributeTime": latencies.text(),
            "putMessageAverageSize": str(size / puts if puts else 0.0),
            "putLatency99": f"{latencies.percentile_ms(99):.2f}",
            "putLatency999": f"{latencies.percentile_ms(99.9):.2f}",
            "putTps": statistics.puts.rates(),
            "getMessageEntireTimeMax": str(statistics.get_longest_ms),
            "getFoundTps": statistics.gets_found.rates(),
            "getMissTps": statistics.gets_missed.rates(),
            "getTotalTps": " ".join(
                f"{statistics.gets_found.rate(span) + statistics.gets_missed.rate(span):.4f}"
                for span in (10, 60, 600)
            ),
            "getTransferredTps": statistics.gets_transferred.rates(),
            "msgPutTotalYesterdayMorning": str(statistics.yesterday_morning[0]),
            "msgPutTotalTodayMorning": str(statistics.this_morning[0]),
            "msgPutTotalTodayNow": str(puts),
            "msgGetTotalYesterdayMorning": str(statistics.yesterday_morning[1]),
            "msgGetTotalTodayMorning": str(statistics.this_morning[1]),
            "msgGetTotalTodayNow": str(gets),
        }

    def _about_store(self) -> dict[str, str]:
        store = self._store
        log = store.log
        usage = self._runtime.disk.usage(store.path)
        ratio = str(usage.used_percent / 100)
        return {
            "commitLogMinOffset": str(log.min_offset),
            "commitLogMaxOffset": str(log.max_offset),
            "commitLogDiskRatio": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": f"Total : {_readable(usage.total)}, Free : {_readable(usage.available)}.",
            "dispatchBehindBytes": str(log.max_offset - store.dispatch.offset),
            "dispatchMaxBuffer": "0",
            "earliestMessageTimeStamp": str(first_stored_ms(store)),
            "pageCacheLockTimeMills": "0",
            "remainTransientStoreBufferNumbs": "0",
            "remainHowManyDataToFlush": _readable(log.max_offset - store.flusher.flushed_offset),
        }

    def _about_queues(self) -> dict[str, str]:
        """What waits: sends for the disk, pulls for messages. There are no threads to wait for."""
        options = self._options
        sizes = {
            "send": (self._flow.waiting, options.sends_waiting_max),
            "pull": (len(self._polling), options.long_polls_max),
            "litePull": (0, options.long_polls_max),
            "query": (0, 0),
            "ack": (0, 0),
        }
        table: dict[str, str] = {}
        for name, (size, capacity) in sizes.items():
            table[f"{name}ThreadPoolQueueSize"] = str(size)
            table[f"{name}ThreadPoolQueueCapacity"] = str(capacity)
            table[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        table["EndTransactionQueueSize"] = table["EndTransactionThreadPoolQueueCapacity"] = "0"
        return table

    def _about_delays(self) -> dict[str, str]:
        table = {
            "timerReadBehind": str(self._timers.behind_ms // 1_000),
            "timerOffsetBehind": str(self._timers.offset_behind),
            "timerCongestNum": str(sum(self._timers.counts.values())),
            "timerEnqueueTps": "0.0",
            "timerDequeueTps": "0.0",
        }
        for level in self._delay.levels:
            end = self._store.max_offset(SCHEDULE_TOPIC, level.queue_id)
            if end:
                table[f"scheduleMessageOffset_{level.number}"] = f"{level.offset},{end}"
        return table

    def handle_delay_offsets(self, connection: Connection, command: Command) -> Command:
        return command.answer(body=dump_compact(self._delay.offsets().to_json()))

    # -- cleaning and replication ----------------------------------------------------------------------------

    def handle_clean_queues(self, connection: Connection, command: Command) -> Command:
        """Queue files follow the log whenever segments are deleted, so there are never expired ones left."""
        return command.answer()

    def handle_delete_expired(self, connection: Connection, command: Command) -> Command:
        _AUDIT.info("%s has expired segments deleted", connection.peer)
        self._store.keeper.request_clean()
        return command.answer()

    def handle_ha_status(self, connection: Connection, command: Command) -> Command:
        status = HARuntimeInfo(
            is_master=not self._options.broker_id, master_commit_log_max_offset=self._store.log.max_offset
        )
        return command.answer(body=status.encode())


def _readable(size: int) -> str:
    """Bytes as RocketMQ shows them."""
    number, unit = float(size), 0
    while number >= 1024 and unit < 6:
        number /= 1024
        unit += 1
    return f"{size} B" if not unit else f"{number:.1f} {'KMGTPE'[unit - 1]}iB"
