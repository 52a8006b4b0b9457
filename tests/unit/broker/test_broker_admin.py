"""The broker for operators: settings, numbers, statistics, cleaning."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from penstock.broker import config_keys
from penstock.broker.options import BrokerOptions
from penstock.errors import RequestError
from penstock.message import HostAddress
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.store import StoreOptions
from tests.support.running_broker import Bench, run, running


async def update(bench: Bench, text: str) -> Command:
    return await bench.client.call(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())


async def settings(bench: Bench) -> dict[str, str]:
    answer = await bench.client.call(RequestCode.GET_BROKER_CONFIG)
    assert answer.code == 0
    return dict(line.split("=", 1) for line in answer.body.decode().splitlines())


def test_settings_can_be_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, name_servers=("127.0.0.1:1", "127.0.0.1:2")) as bench:
            found = await settings(bench)
            assert found["brokerName"] == "broker-a"
            assert found["brokerClusterName"] == "DefaultCluster"
            assert found["autoCreateTopicEnable"] == "true"
            assert found["flushDiskType"] == "ASYNC_FLUSH"
            assert found["maxMessageSize"] == "65536"
            assert found["namesrvAddr"] == "127.0.0.1:1;127.0.0.1:2"
            assert found["penstock.batch_count_max"] == "10000"
            answer = await bench.client.call(RequestCode.GET_BROKER_CONFIG)
            assert json.loads(answer.fields["version"])["counter"] == 0

    run(scenario)


def test_a_setting_on_the_list_changes_at_once_and_leaves_a_line(tmp_path: Path, caplog) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await bench.client.send("Known")
            assert (
                await update(bench, "# a comment\n\nautoCreateTopicEnable = false\ntraceOn=false\n")
            ).code == 0
            assert (await bench.client.send("Unknown")).code == ResponseCode.TOPIC_NOT_EXIST
            for _ in range(2):  # the compiled way follows too
                assert (await bench.client.send("Known")).fields["TRACE_ON"] == "false"
            found = await settings(bench)
            assert (found["autoCreateTopicEnable"], found["traceOn"]) == ("false", "false")
            answer = await bench.client.call(RequestCode.GET_BROKER_CONFIG)
            assert json.loads(answer.fields["version"])["counter"] == 1
            assert (await update(bench, "maxTransferCountOnMessageInMemory=1")).code == 0
            answer = await bench.client.pull("Known")
            assert answer.fields["nextBeginOffset"] == "1"
            assert (await update(bench, "brokerPermission=2")).code == 0
            assert (await bench.client.pull("Known")).code == ResponseCode.NO_PERMISSION
            assert (await update(bench, "")).code == 0

    with caplog.at_level(logging.INFO, "penstock.audit"):
        run(scenario)
    assert "sets autoCreateTopicEnable from True to False" in caplog.text


@pytest.mark.abuse("A8")
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("storePathRootDir=/tmp/elsewhere", ResponseCode.NO_PERMISSION),
        ("brokerIP1=6.6.6.6", ResponseCode.NO_PERMISSION),
        ("namesrvAddr=6.6.6.6:9876", ResponseCode.NO_PERMISSION),
        ("rmqAddressServerDomain=evil", ResponseCode.NO_PERMISSION),
        ("filterServerNums=1\nrocketmqHome=-c x", ResponseCode.NO_PERMISSION),
        ("configStorePath=/etc/cron.d/x", ResponseCode.NO_PERMISSION),
        ("remote_settings=true", ResponseCode.NO_PERMISSION),
        ("penstock.remote_settings=true", ResponseCode.NO_PERMISSION),
        ("traceOn=false\nlistenPort=1", ResponseCode.NO_PERMISSION),
        ("brokerPermission=9", ResponseCode.INVALID_PARAMETER),
        ("brokerPermission=six", ResponseCode.INVALID_PARAMETER),
        ("traceOn=perhaps", ResponseCode.INVALID_PARAMETER),
        ("maxTransferCountOnMessageInMemory=0", ResponseCode.INVALID_PARAMETER),
        ("maxTransferBytesOnMessageInMemory=99999999999999999999", ResponseCode.INVALID_PARAMETER),
        ("no setting", ResponseCode.SYSTEM_ERROR),
        ("traceOn=true\n" * 300, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_any_other_setting_is_refused_and_nothing_changes(tmp_path: Path, text: str, code: int) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            before = await settings(bench)
            answer = await update(bench, text)
            assert answer.code == code, answer.remark
            assert await settings(bench) == before

    run(scenario)


@pytest.mark.abuse("A8")
def test_settings_change_from_this_machine_only_unless_told_otherwise(tmp_path: Path) -> None:
    async def scenario() -> None:
        for is_allowed in (False, True):
            async with running(tmp_path / str(is_allowed), remote_settings=is_allowed) as bench:
                await bench.client.send()
                [connection] = bench.broker.connections
                connection.peer = HostAddress("192.0.2.7", 5000)
                answer = await update(bench, "traceOn=false")
                assert answer.code == (0 if is_allowed else ResponseCode.NO_PERMISSION)
                assert bench.broker.options.trace_on != is_allowed

    run(scenario)


def test_the_list_names_settings_that_exist() -> None:
    options = BrokerOptions()
    assert set(config_keys.CHANGEABLE) <= set(config_keys.BROKER_KEYS)
    for name in config_keys.BROKER_KEYS.values():
        assert hasattr(options, name)
    for key, bounds in config_keys.CHANGEABLE.items():
        value = getattr(options, config_keys.BROKER_KEYS[key])
        assert (bounds is None) == isinstance(value, bool)
    lines = config_keys.as_lines(options, StoreOptions()).decode()
    pairs = {
        key: value
        for key, value in (line.split("=", 1) for line in lines.splitlines())
        if key in config_keys.CHANGEABLE
    }
    assert config_keys.changed(options, pairs) == options
    with pytest.raises(RequestError):
        config_keys.parse_lines(b"\xff\xfe")


RUNTIME_KEYS = (
    "brokerActive putTps getTransferredTps sendThreadPoolQueueSize pullThreadPoolQueueSize ackThreadPoolQueueSize "
    "sendThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueHeadWaitTimeMills ackThreadPoolQueueHeadWaitTimeMills "
    "pageCacheLockTimeMills earliestMessageTimeStamp commitLogDiskRatio timerReadBehind timerOffsetBehind "
    "timerCongestNum timerEnqueueTps timerDequeueTps brokerVersion brokerVersionDesc msgPutTotalYesterdayMorning "
    "msgPutTotalTodayMorning "
    "msgPutTotalTodayNow msgGetTotalYesterdayMorning msgGetTotalTodayMorning msgGetTotalTodayNow bootTimestamp "
    "runtime putMessageEntireTimeMax putMessageTimesTotal putMessageFailedTimes putMessageSizeTotal "
    "putMessageDistributeTime "
    "putMessageAverageSize dispatchMaxBuffer getMessageEntireTimeMax getFoundTps getMissTps getTotalTps putLatency99 "
    "putLatency999 commitLogMinOffset commitLogMaxOffset consumeQueueDiskRatio dispatchBehindBytes "
    "startAcceptSendRequestTimeStamp remainTransientStoreBufferNumbs remainHowManyDataToFlush commitLogDirCapacity "
    "sendThreadPoolQueueCapacity pullThreadPoolQueueCapacity "
)


def test_runtime_info_has_all_that_mqadmin_reads(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            empty = json.loads((await bench.client.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
            assert empty["earliestMessageTimeStamp"] == "-1"
            for _ in range(3):
                await bench.client.send()
            await bench.client.pull()
            bench.broker.statistics.tick()
            answer = await bench.client.call(RequestCode.GET_BROKER_RUNTIME_INFO)
            table = json.loads(answer.body)["table"]
            assert [key for key in RUNTIME_KEYS.split() if key not in table] == []
            assert all(isinstance(value, str) for value in table.values())
            for key in ("putTps", "getTransferredTps", "getFoundTps", "getMissTps", "getTotalTps"):
                assert len([float(part) for part in table[key].split(" ")]) == 3
            assert table["msgPutTotalTodayNow"] == table["msgGetTotalTodayNow"] == "3"
            assert int(table["earliestMessageTimeStamp"]) > 0
            assert 0 <= float(table["commitLogDiskRatio"]) <= 1
            assert int(table["commitLogMaxOffset"]) == bench.broker.store.log.max_offset

    run(scenario)


def test_statistics_can_be_viewed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:

            async def view(name: str, key: str) -> Command:
                return await bench.client.call(
                    RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key}
                )

            assert (await view("TOPIC_PUT_NUMS", "T")).code == ResponseCode.SYSTEM_ERROR
            assert (await view("NO_SUCH", "T")).code == ResponseCode.SYSTEM_ERROR
            for _ in range(4):
                await bench.client.send()
            await bench.client.pull()
            for name, key, total in (
                ("TOPIC_PUT_NUMS", "T", 4),
                ("BROKER_PUT_NUMS", "DefaultCluster", 4),
                ("GROUP_GET_NUMS", "T@consumers", 4),
                ("BROKER_GET_NUMS", "DefaultCluster", 4),
                ("TOPIC_PUT_SIZE", "T", bench.broker.store.log.max_offset),
                ("GROUP_GET_SIZE", "T@consumers", bench.broker.store.log.max_offset),
            ):
                found = json.loads((await view(name, key)).body)
                for span in ("statsMinute", "statsHour", "statsDay"):
                    assert found[span]["sum"] == total, (name, span)
                    assert found[span]["tps"] > 0
            assert (await view("GROUP_GET_LATENCY", "0@T@consumers")).code == 0

    run(scenario)


def test_cleaning_and_replication(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await bench.client.send()
            assert (await bench.client.call(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
            assert (await bench.client.call(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
            assert bench.broker.store.keeper._manual_rounds > 0
            answer = await bench.client.call(RequestCode.GET_BROKER_HA_STATUS)
            status = json.loads(answer.body)
            assert status["master"] is True
            assert status["masterCommitLogMaxOffset"] == bench.broker.store.log.max_offset
            assert status["inSyncSlaveNums"] == 0

    run(scenario)
