"""What clients tell brokers about themselves: heartbeats (34) and the check of a subscription (46).

Rules: forgiving where clients differ. A name that no enumeration has counts as the default, tag hashes may be
strings, a subscription without type is by TAG, and hashes that are missing are computed from the tags.
Plain values.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Self, TypeVar
from zlib import crc32

from penstock.errors import RequestError
from penstock.message.hashing import java_string_hash
from penstock.metadata.fastjson import JsonObject
from penstock.protocol.bodies.body import (
    INT32_MAX,
    INT32_MIN,
    REQUEST_LOOSE_MAX,
    Body,
    BodyFields,
    without_nulls,
)
from penstock.protocol.codes import ResponseCode

ALL_TAGS = "*"
_TAG_SEPARATOR = "||"
_TERMS_MAX = 300
# What Java's trim takes away; other blanks belong to a tag.
_BLANKS = "".join(map(chr, range(33)))


class ExpressionType(StrEnum):
    """How a subscription chooses messages."""

    TAG = "TAG"
    SQL92 = "SQL92"
    # Penstock's own: messages with one of these keys. RocketMQ's brokers refuse it.
    KEYS = "KEYS"


class ConsumeType(StrEnum):
    """Who moves the messages: the consumer by pulling, or the client library for a listener."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Whether each message goes to one consumer of the group or to every one."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    """Where a group without offsets begins; the middle three are historical."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


E = TypeVar("E", bound=StrEnum)


def read_enum(fields: BodyFields, key: str, default: E) -> E:
    """The member of that name, in any case, or of that number in Java's order, as RocketMQ reads it: C++ clients send
    numbers. The default for none and for names of other versions."""
    text, members = fields.text(key, default).upper(), list(type(default))
    if text.isascii() and text.isdigit() and len(text) < 3 and int(text) < len(members):
        return members[int(text)]
    try:
        return type(default)(text)
    except ValueError:
        return default


@dataclass(frozen=True, slots=True)
class SubscriptionData(Body):
    """One topic of a consumer and which of its messages are wanted.

    `sub_version` is milliseconds in Java and nanoseconds in Go: compare it only with its like.
    """

    topic: str
    sub_string: str = ALL_TAGS
    tags_set: frozenset[str] = frozenset()
    code_set: frozenset[int] = frozenset()
    sub_version: int = 0
    expression_type: str = ExpressionType.TAG
    class_filter_mode: bool = False

    @classmethod
    def parse(
        cls, topic: str, expression: str | None, expression_type: str | None = None, sub_version: int = 0
    ) -> Self:
        """From what a user writes: `*`, `a || b`, an SQL92 condition, or keys with spaces between them.

        Raises RequestError with SUBSCRIPTION_PARSE_FAILED.
        """
        kind = expression_type or ExpressionType.TAG
        if kind == ExpressionType.SQL92:
            if not expression:
                raise _unparsable("an SQL92 expression is empty", "write a condition")
            return cls(topic, expression, sub_version=sub_version, expression_type=kind)
        if kind == ExpressionType.KEYS:
            if not (expression or "").strip(" "):
                raise _unparsable(
                    "a subscription by keys names no key", "write keys with spaces between them"
                )
            return cls(topic, expression or "", sub_version=sub_version, expression_type=kind)
        if kind != ExpressionType.TAG:
            raise _unparsable(f"no such expression type: {kind[:40]!r}", "use TAG, SQL92 or KEYS")
        if not expression or expression == ALL_TAGS:
            return cls(topic, sub_version=sub_version)
        parts = (part.strip(_BLANKS) for part in expression.split(_TAG_SEPARATOR))
        tags = frozenset(tag for tag in parts if tag)
        if not tags:
            raise _unparsable(f"{expression[:80]!r} names no tag", "write *, a, or a || b")
        return cls(topic, expression, tags, _hashes(tags), sub_version)

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        tags = frozenset(fields.text_list("tagsSet"))
        codes = frozenset(fields.integer_list("codeSet", INT32_MIN, INT32_MAX))
        return cls(
            topic=fields.text("topic", ""),
            sub_string=fields.text("subString", ALL_TAGS),
            tags_set=tags,
            code_set=codes or _hashes(tags),
            sub_version=fields.i64("subVersion"),
            expression_type=fields.text("expressionType", "") or ExpressionType.TAG,
            class_filter_mode=fields.boolean("classFilterMode", False),
        )

    def to_json(self) -> JsonObject:
        return {
            "classFilterMode": self.class_filter_mode,
            "codeSet": [*sorted(self.code_set)],
            "expressionType": str(self.expression_type),
            "subString": self.sub_string,
            "subVersion": self.sub_version,
            "tagsSet": [*sorted(self.tags_set)],
            "topic": self.topic,
        }

    @property
    def is_tag_type(self) -> bool:
        return self.expression_type == ExpressionType.TAG

    @property
    def keys(self) -> frozenset[str]:
        """The keys of which a message must have one; none if keys do not decide."""
        if self.expression_type != ExpressionType.KEYS:
            return frozenset()
        return frozenset(self.sub_string.split(" ")) - {""}

    @property
    def is_all(self) -> bool:
        """Whether every message is wanted."""
        return self.is_tag_type and self.sub_string in (ALL_TAGS, "")

    @property
    def wish(self) -> str:
        """What is wanted, as people write it; the same for all spellings of the same tags."""
        return " || ".join(sorted(self.tags_set)) if self.is_tag_type and self.tags_set else self.sub_string

    def accepts_code(self, tags_code: int) -> bool:
        """Whether a message with this tag hash may be wanted; the client looks at the tag itself again."""
        return self.is_all or tags_code in self.code_set


def _hashes(tags: frozenset[str]) -> frozenset[int]:
    try:
        return frozenset(map(java_string_hash, tags))
    except UnicodeEncodeError as error:
        raise _unparsable("a tag holds half a character", "use whole characters") from error


def _unparsable(message: str, hint: str) -> RequestError:
    return RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, message, hint)


@dataclass(frozen=True, slots=True)
class ConsumerData(Body):
    """One consumer group of a client."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscriptions: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            group_name=fields.text("groupName", ""),
            consume_type=read_enum(fields, "consumeType", ConsumeType.CONSUME_PASSIVELY),
            message_model=read_enum(fields, "messageModel", MessageModel.CLUSTERING),
            consume_from_where=read_enum(
                fields, "consumeFromWhere", ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
            ),
            subscriptions=tuple(map(SubscriptionData.read, fields.object_list("subscriptionDataSet"))),
            unit_mode=fields.boolean("unitMode", False),
        )

    def to_json(self) -> JsonObject:
        return {
            "consumeFromWhere": str(self.consume_from_where),
            "consumeType": str(self.consume_type),
            "groupName": self.group_name,
            "messageModel": str(self.message_model),
            "subscriptionDataSet": [item.to_json() for item in self.subscriptions],
            "unitMode": self.unit_mode,
        }

    @property
    def terms(self) -> str:
        """What all members of a group have to agree on, in one line: how they consume, and what of which topics. A
        long line is cut, and ends with its checksum."""
        topics = {
            item.topic: item.wish for item in self.subscriptions if not item.topic.startswith("%RETRY%")
        }
        mode = " by pop" if self.consume_type is ConsumeType.CONSUME_POP else ""
        listed = ", ".join(f"{topic} ({wish})" for topic, wish in sorted(topics.items())) or "no topic"
        text = f"{self.message_model.lower()}{mode}: {listed}"
        return text if len(text) <= _TERMS_MAX else f"{text[:_TERMS_MAX]}... #{crc32(text.encode()):08x}"


@dataclass(frozen=True, slots=True)
class ProducerData(Body):
    """One producer group of a client."""

    group_name: str

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(fields.text("groupName", ""))

    def to_json(self) -> JsonObject:
        return {"groupName": self.group_name}


@dataclass(frozen=True, slots=True)
class HeartbeatData(Body):
    """All groups of one client. With `without_sub` the subscriptions are left out and stay as they were."""

    BYTES_MAX: ClassVar[int] = 2 * 1024 * 1024
    OBJECTS_MAX: ClassVar[int] = 10_000
    LOOSE_BYTES_MAX: ClassVar[int] = REQUEST_LOOSE_MAX

    client_id: str
    producers: tuple[ProducerData, ...] = ()
    consumers: tuple[ConsumerData, ...] = ()
    fingerprint: int = 0
    without_sub: bool = False

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            client_id=fields.text("clientID", ""),
            producers=tuple(map(ProducerData.read, fields.object_list("producerDataSet"))),
            consumers=tuple(map(ConsumerData.read, fields.object_list("consumerDataSet"))),
            fingerprint=fields.i64("heartbeatFingerprint"),
            without_sub=fields.boolean("withoutSub", False),
        )

    def to_json(self) -> JsonObject:
        return {
            "clientID": self.client_id,
            "consumerDataSet": [item.to_json() for item in self.consumers],
            "heartbeatFingerprint": self.fingerprint,
            "producerDataSet": [item.to_json() for item in self.producers],
            "withoutSub": self.without_sub,
        }


@dataclass(frozen=True, slots=True)
class CheckClientRequestBody(Body):
    """Code 46: can this subscription be served?"""

    BYTES_MAX: ClassVar[int] = 256 * 1024
    # Commas in an expression's list count as values.
    OBJECTS_MAX: ClassVar[int] = 1_000
    LOOSE_BYTES_MAX: ClassVar[int] = REQUEST_LOOSE_MAX

    client_id: str
    group: str
    subscription: SubscriptionData | None = None
    namespace: str | None = None

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        subscription = fields.inner("subscriptionData")
        return cls(
            client_id=fields.text("clientId", ""),
            group=fields.text("group", ""),
            subscription=None if subscription is None else SubscriptionData.read(subscription),
            namespace=fields.text_or_none("namespace"),
        )

    def to_json(self) -> JsonObject:
        return without_nulls(
            clientId=self.client_id,
            group=self.group,
            namespace=self.namespace,
            subscriptionData=None if self.subscription is None else self.subscription.to_json(),
        )
