"""RocketMQ's default settings beside ours: which option each of its settings is, and the tables in the compatibility
page that list the differences and the settings without an option."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from penstock.cli.config import options_class
from penstock.cli.rocketmq_config import KEYS, Key
from penstock.cli.settings import convert
from penstock.client.options import ClientOptions, ConsumerOptions, ProducerOptions

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
DIFFERENCES, WITHOUT_OPTION = "Default settings that differ", "Settings without an option"
_CLIENT_CLASSES = {"client": ClientOptions, "producer": ProducerOptions, "consumer": ConsumerOptions}


def _lower(text: str) -> str:
    return text.lower()


def _start(text: str) -> str:
    return {"CONSUME_FROM_LAST_OFFSET": "auto", "CONSUME_FROM_FIRST_OFFSET": "first"}.get(text, text)


def _times(factor: int) -> Callable[[str], object]:
    return lambda text: int(text) * factor


_OF_CLIENTS = {
    "heartbeatBrokerInterval": Key("client", "heartbeat_interval_ms"),
    "instanceName": Key("client", "instance_name"),
    "mqClientApiTimeout": Key("client", "call_timeout_ms"),
    "pollNameServerInterval": Key("client", "route_interval_ms"),
}
_OF_PRODUCERS = _OF_CLIENTS | {
    "backPressureForAsyncSendNum": Key("producer", "buffer_messages"),
    "backPressureForAsyncSendSize": Key("producer", "buffer_bytes"),
    "compressLevel": Key("producer", "compression_level"),
    "compressMsgBodyOverHowmuch": Key("producer", "compress_over_bytes"),
    "compressType": Key("producer", "compression", _lower),
    "createTopicKey": Key("producer", "template_topic"),
    "defaultTopicQueueNums": Key("producer", "topic_queues"),
    "enableTrace": Key("producer", "trace"),
    "maxMessageSize": Key("producer", "message_bytes_max"),
    "retryAnotherBrokerWhenNotStoreOK": Key("producer", "retry_not_durable"),
    "retryTimesWhenSendAsyncFailed": Key("producer", "retries"),
    "retryTimesWhenSendFailed": Key("producer", "retries"),
    "sendLatencyEnable": Key("producer", "avoid_slow_brokers"),
    "sendMsgTimeout": Key("producer", "send_timeout_ms"),
}
_OF_CONSUMERS = _OF_CLIENTS | {
    "awaitTerminationMillisWhenShutdown": Key("consumer", "close_timeout_ms"),
    "consumeConcurrentlyMaxSpan": Key("consumer", "queue_span_max"),
    "consumeFromWhere": Key("consumer", "start_from", _start),
    "consumeThreadMax": Key("consumer", "threads"),
    "consumeTimeout": Key("consumer", "consume_timeout_ms", _times(60_000)),
    "enableTrace": Key("consumer", "trace"),
    "maxReconsumeTimes": Key("consumer", "retries_max"),
    "messageModel": Key("consumer", "model", _lower),
    "persistConsumerOffsetInterval": Key("consumer", "persist_interval_ms"),
    "popBatchNums": Key("consumer", "pop_batch"),
    "popInvisibleTime": Key("consumer", "invisible_ms"),
    "pullBatchSize": Key("consumer", "pull_batch"),
    "pullThresholdForQueue": Key("consumer", "queue_messages_max"),
    "pullThresholdSizeForQueue": Key("consumer", "queue_bytes_max", _times(1 << 20)),
    "pullTimeDelayMillsWhenException": Key("consumer", "pull_retry_ms"),
    "suspendCurrentQueueTimeMillis": Key("consumer", "rest_ms"),
}
KEYS_OF: dict[str, Mapping[str, Key]] = {
    "BrokerConfig": KEYS["broker"],
    "MessageStoreConfig": KEYS["broker"],
    "NamesrvConfig": KEYS["nameserver"],
    "NettyServerConfig": KEYS["broker"],
    "NettyClientConfig": KEYS["broker"],
    "System": KEYS["broker"],
    "DefaultMQProducer": _OF_PRODUCERS,
    "DefaultMQPushConsumer": _OF_CONSUMERS,
}
"""By RocketMQ's class: the option that each setting is."""


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    """A row: RocketMQ's setting and its default, our option and its default. `*`: whatever the machine makes it."""

    setting: str
    theirs: str
    option: str
    ours: str


def find(setting: str) -> Key:
    """The option of a setting that is given as `Class.name`; KeyError if there is none."""
    owner, _, name = setting.partition(".")
    return KEYS_OF[owner][name]


def option_name(key: Key) -> str:
    return ".".join(filter(None, (key.section, key.name)))


def default(key: Key) -> object:
    """The default of one of our options."""
    owner = _CLIENT_CLASSES.get(key.section) or options_class(key.section)
    field = next(each for each in dataclasses.fields(owner) if each.name == key.name)
    return field.default


def shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if value != "" else "(empty)"


def is_equal(key: Key, theirs: str) -> bool:
    """Whether RocketMQ's default says what ours does."""
    raw = key.convert(theirs)
    owner = _CLIENT_CLASSES.get(key.section) or options_class(key.section)
    value = (
        raw if key.section in _CLIENT_CLASSES and not isinstance(raw, str) else convert(owner, key.name, raw)
    )
    return value == default(key)


def _cells(heading: str) -> list[list[str]]:
    text = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines]


def differences() -> list[Difference]:
    """The rows of the page."""
    rows = _cells(DIFFERENCES)
    assert all(len(row) == 5 and row[4] for row in rows), "a row without a reason"
    return [Difference(*(cell.strip("`") for cell in row[:4])) for row in rows]


def patterns() -> list[str]:
    """The patterns of settings without an option, each with a reason in the page."""
    rows = _cells(WITHOUT_OPTION)
    assert all(len(row) == 2 and row[1] for row in rows), "a row without a reason"
    return [pattern for row in rows for pattern in re.findall(r"`([^`]+)`", row[0])]


def is_matched(setting: str, pattern: str) -> bool:
    """A pattern is of names, or of `Class.name`."""
    return fnmatchcase(setting if "." in pattern else setting.partition(".")[2], pattern)
