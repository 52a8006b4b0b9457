"""Frames that almost are what a server expects: a seed and a corpus in, hostile bytes out, the same ones each time.

    header      fields replaced, dropped, renamed, doubled, by the thousand; members of wrong types, of huge
                numbers, deep, cut; both header forms, lengths that lie, text that is no text
    body        JSON with a node replaced or nested or doubled, batches and compressed registrations whose
                lengths lie, bombs, bytes flipped, cut, added
    frame       lengths and form that lie, bytes flipped anywhere, cut, glued

`Expected` says what a server has to do with a frame. It is found with the library's own decoder, which has tests of
its own; here it is the servers that are on trial. Every frame comes from the seed and its number alone.
"""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from penstock.errors import FrameError
from penstock.protocol.command import ONEWAY_FLAG, RESPONSE_FLAG, decode_frame, frame_size
from penstock.security import Credentials
from penstock.security.signatures import ACCESS_KEY_FIELD, SIGNATURE_FIELD, sign
from tests.support.request_corpus import Request

NUMBERS = (
    "-1", "0", "1", "7", "-0", "+1", "007", "32767", "32768", "65536", "2147483647", "2147483648", "-2147483648",
    "-2147483649", "4294967296", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "9" * 18, "9" * 19, "9" * 30, "9" * 5000, "1e9", "1.5", "NaN", "Infinity", "0x10", " 1", "1 ", "", "\u0661",
)  # fmt: skip
NAMES = (
    "", " ", "..", ".", "../../../../tmp/x", "/etc/passwd", "a/b", "a\\b", "a\0b", "%00", "%2e%2e%2f", "CON", "NUL.txt",
    "aux", "x" * 127, "x" * 128, "x" * 256, "x" * 10_240, "%RETRY%", "%RETRY%hostile-group", "%DLQ%hostile-group",
    "TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_hostile", "SELF_TEST_TOPIC", "BenchmarkTest",
    "HOSTILE-TOPIC", "hostile topic", "\u202egnp", "\u00e9", "\U0001f600", "$(reboot)", "<script>", "a\nb", "a\x1b[2J",
    "*", "a || b", "a ||", "hostile-0", "hostile-1", "hostile-2", "hostile-group", "10.9.9.9@hostile", "169.254.169.254:80",
    "0.0.0.0:1", "[::1]:1", "localhost:99999", "hostile-broker",
)  # fmt: skip
TRUTHS = ("true", "false", "TRUE", "maybe", "null")
VALUES = NUMBERS + NAMES + TRUTHS
PROPERTY_TEXTS = (
    "", "\x01", "\x02", "\x01\x02", "a", "a\x01", "a\x01b", "a\x01b\x02", "\x01b\x02", "a\x01\x02", "a\x01b\x01c\x02",
    "DELAY\x01-1\x02", "DELAY\x019223372036854775807\x02", "DELAY\x0199999999999999999999\x02", "DELAY\x01x\x02",
    "DELAY\x012\x02", "TIMER_DELIVER_MS\x019223372036854775807\x02", "TIMER_DELAY_SEC\x01-5\x02", "TRAN_MSG\x01true\x02",
    "UNIQ_KEY\x01\x02", "UNIQ_KEY\x01" + "u" * 129 + "\x02", 'UNIQ_KEY\x01a"b\\\x02', "UNIQ_KEY\x01\u00fc\x02",
    "WAIT\x01true\x02WAIT\x01true\x02UNIQ_KEY\x01a\x02", "WAIT\x01false\x02", "CLUSTER\x01x\x02", "__CRC32#\x01x\x02",
    "K\x01" + "v" * 33_000 + "\x02", "UNIQ_KEY\x01a\x02" + "k\x01v\x02" * 3_000, "KEYS\x01" + " k" * 500 + "\x02",
    "REAL_TOPIC\x01../x\x02", "RETRY_TOPIC\x01/etc\x02", "UNIQ_KEY\x01a\x02UNIQ_KEY\x01b\x02", "\x00\x01\x00\x02",
    "UNIQ_KEY\x01a\x02TAGS\x01\x7f\x02", "UNIQ_KEY\x01a\x02TAGS\x01t\x02TAGS\x01u\x02", "INNER_NUM\x015\x02",
)  # fmt: skip
LEAVES: tuple[object, ...] = (
    None, True, False, 0, -1, 2**31, 2**63, -(2**63) - 1, 10**30, 1.5, 1e308, "", "x", "9" * 40, "x" * 5_000, [], {}, [[]],
    {"a": {}}, [1, 2], ["a", None], "../x", "a\x00b", "\u00e9", {"$ref": "$"}, {"$ref": "$.x"}, {"@type": "java.net.URL"},
)  # fmt: skip
# Part of the frames that a user signs, where there are users.
SIGNED = 0.85
BOMB = zlib.compress(bytes(64 << 20), 9)


class Expected(Enum):
    """What a server does with a frame."""

    HANDLED = "answered, unless it is one-way or a response"
    CLOSED = "the connection is closed"
    AWAITED = "more bytes are waited for, until the time for a frame is over"


@dataclass(slots=True)
class Draft:
    """A frame in parts, for mutations to change."""

    code: object
    fields: dict[str, object]
    body: bytes
    kind: str
    opaque: object
    version: object
    flag: object = 0
    binary: bool = False
    language: object = "JAVA"
    # JSON members, or bytes of a binary header, that go behind the others.
    extra: list[tuple[str, str]] = field(default_factory=list)
    after: list[Callable[[bytes], bytes]] = field(default_factory=list)


class Mutator:
    """Makes frames from a seed."""

    def __init__(self, requests: Sequence[Request], seed: int, users: Sequence[Credentials] = ()) -> None:
        """`users` sign most frames, each its share: the mutated ones, so that access control lets them through."""
        self._requests = requests
        self._seed = seed
        self._users = users
        self._luck = random.Random()

    def frame(self, number: int) -> bytes:
        """Frame `number` of this seed; its opaque is the number where the mutation left that alone."""
        self._luck.seed(self._seed * 1_000_003 + number)
        luck = self._luck
        chosen = luck.choice(self._requests)
        draft = Draft(
            chosen.code,
            dict(chosen.fields),
            chosen.body,
            chosen.kind,
            number & 0x7FFFFFFF,
            chosen.version,
            binary=luck.random() < 0.4,
        )
        for _ in range(luck.choice((0, 1, 1, 1, 2, 3))):
            luck.choices(MUTATIONS, WEIGHTS)[0](self, draft)
        if self._users and luck.random() < SIGNED:
            self._sign(draft)
        data = encode(draft)
        for change in draft.after:
            data = change(data)
        return data

    def _sign(self, draft: Draft) -> None:
        if not all(isinstance(value, str) for value in draft.fields.values()):
            return
        user = self._luck.choice(self._users)
        fields = {**draft.fields, ACCESS_KEY_FIELD: user.access_key}
        draft.fields = {**fields, SIGNATURE_FIELD: sign(user.secret_key, fields, draft.body)}

    # -- header ----------------------------------------------------------------------------------------------

    def replace_value(self, draft: Draft) -> None:
        if draft.fields:
            name = self._luck.choice(list(draft.fields))
            if name in ("i", "properties") and self._luck.random() < 0.8:
                draft.fields[name] = self._luck.choice(PROPERTY_TEXTS)
            else:
                draft.fields[name] = self._luck.choice(VALUES)

    def change_name(self, draft: Draft) -> None:
        """New names, so that tables are tried: topics, groups, clients, brokers that nobody has seen."""
        for name, value in draft.fields.items():
            if isinstance(value, str) and value.startswith(("hostile", "10.9")) and self._luck.random() < 0.5:
                draft.fields[name] = f"hostile-{self._luck.randrange(5_000)}"

    def drop_field(self, draft: Draft) -> None:
        if draft.fields:
            del draft.fields[self._luck.choice(list(draft.fields))]

    def rename_field(self, draft: Draft) -> None:
        if draft.fields:
            name = self._luck.choice(list(draft.fields))
            draft.fields[self._luck.choice(("", "x", name.upper(), name + "\0", "a", "topic", "b"))] = (
                draft.fields.pop(name)
            )

    def add_fields(self, draft: Draft) -> None:
        count = self._luck.choice((1, 5, 200, 256, 257, 1_000, 5_000))
        draft.fields |= {f"f{n}": "v" for n in range(count)}

    def large_field(self, draft: Draft) -> None:
        size = self._luck.choice((1_000, 10_000, 60_000, 200_000, 300_000))
        draft.fields[self._luck.choice(("topic", "b", "i", "properties", "filler", "consumerGroup"))] = (
            "v" * size
        )

    def typed_value(self, draft: Draft) -> None:
        """Only a JSON header can say it."""
        if draft.fields:
            draft.fields[self._luck.choice(list(draft.fields))] = self._luck.choice(LEAVES)

    def header_member(self, draft: Draft) -> None:
        luck = self._luck
        number = luck.choice(
            (-1, 0, 3, 9, 2**15, 2**31 - 1, -(2**31), 2**31, 2**63, 10**400, None, "7", 1.5, [], {})
        )
        member = luck.choice(("code", "opaque", "flag", "version", "language"))
        setattr(draft, member, number)

    def other_code(self, draft: Draft) -> None:
        draft.code = (
            self._luck.choice(self._requests).code
            if self._luck.random() < 0.8
            else self._luck.randrange(-5, 1_200)
        )

    def flags(self, draft: Draft) -> None:
        draft.flag = self._luck.choice((1, 2, 2, 3, 4, 7, 0x40000000))

    def extra_members(self, draft: Draft) -> None:
        """Members twice, deep, unknown, not JSON at all; in a binary header a field twice."""
        depth = self._luck.choice((10, 100, 2_000, 20_000))
        name, value = self._luck.choice(
            (
                ("extFields", '{"b":"hostile-0","topic":"hostile-0"}'),
                ("extFields", "null"),
                ("code", "310"),
                ("opaque", "1"),
                ("flag", "2"),
                ("unknown", "[" * depth + "]" * depth),
                ("unknown", '{"a":' * depth + "1" + "}" * depth),
                ("unknown", "[" * depth),
                ("unknown", "9" * 5_000),
                ("version", "9" * 300),
                ("remark", "null"),
                ("remark", '"' + "r" * 5_000 + '"'),
                ("remark", '"\\ud800"'),
                ("language", '"\x00"'),
                ("x", "NaN"),
                ("x", ""),
                ("b", "hostile-0"),
                ("e", "1"),
            )
        )
        draft.extra.append((name, value))

    # -- body ------------------------------------------------------------------------------------------------

    def body_bytes(self, draft: Draft) -> None:
        luck = self._luck
        data = bytearray(draft.body)
        for _ in range(luck.choice((1, 2, 8))):
            at = luck.randrange(len(data) + 1)
            how = luck.randrange(4)
            if how == 0 and at < len(data):
                data[at] ^= 1 << luck.randrange(8)
            elif how == 1:
                del data[at : at + luck.choice((1, 4, 100))]
            elif how == 2:
                data[at:at] = luck.choice(
                    (b"\0", b"\xff\xff\xff\xff", b"{", b'"', b"]", b"[" * 500, b"9" * 400)
                )
            else:
                data[at : at + 4] = luck.choice(
                    (b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x16")
                )
        draft.body = bytes(data)

    def body_shape(self, draft: Draft) -> None:
        """As the kind of body allows, or bytes if it cannot be read that way any more."""
        if len(draft.body) > 100_000:
            return
        try:
            if draft.kind == "json":
                draft.body = self._json(draft.body)
            elif draft.kind == "batch":
                draft.body = self._batch(draft.body)
            elif draft.kind == "zlib":
                draft.body = self._zlib(draft.body)
            elif draft.kind == "text":
                draft.body = self._luck.choice(
                    (b"", b"\xff" * 10, b"=\n" * 300, b"traceOn=", b"a=b", bytes(5_000), b"x" * 70_000)
                )
        except (ValueError, RecursionError, struct.error, zlib.error):
            self.body_bytes(draft)

    def _json(self, body: bytes) -> bytes:
        luck = self._luck
        content = json.loads(body)
        places = list(_places(content))
        how = luck.randrange(5)
        if how == 0 or not places:
            deep = luck.choice((20, 40, 1_000, 20_000))
            return luck.choice(
                (b'{"a":' * deep + b"1" + b"}" * deep, b"[" * deep, body + body, body[:-1], b" " * 5_000)
            )
        holder, key = luck.choice(places)
        if how == 1 and isinstance(holder, dict):
            del holder[key]
        elif how == 2 and isinstance(holder, list):
            holder *= luck.choice((10, 300, 3_000))
        elif how == 3 and isinstance(holder, dict):
            text = json.dumps(content)
            twice = f"{json.dumps(key)}:{json.dumps(luck.choice(LEAVES))},"
            return text.replace("{", "{" + twice, luck.choice((1, 3))).encode()
        else:
            holder[key] = luck.choice((*LEAVES, *VALUES))
        return json.dumps(content).encode()

    def _batch(self, body: bytes) -> bytes:
        """Lengths that lie: of an item, of its body, of its properties; items by the thousand; batches in one."""
        luck = self._luck
        data = bytearray(body)
        item = int.from_bytes(data[:4], "big")
        lie = luck.choice(
            (-1, 0, 1, 21, 22, item - 1, item + 1, len(data), len(data) + 1, 2**31 - 1, -(2**31))
        )
        how = luck.randrange(5)
        if how == 0:
            struct.pack_into(">i", data, luck.choice((0, item)), lie)
        elif how == 1:
            struct.pack_into(">i", data, 16, lie)
        elif how == 2:
            inner = int.from_bytes(data[16:20], "big")
            struct.pack_into(">h", data, 20 + inner, max(min(lie, 32767), -32768))
        elif how == 3:
            return bytes(data[:item]) * luck.choice((0, 10, 500))
        else:
            data = bytearray(struct.pack(">iiiii", 22 + len(data), 0, 0, 0, len(data)) + data + b"\0\0")
        return bytes(data)

    def _zlib(self, body: bytes) -> bytes:
        luck = self._luck
        if luck.random() < 0.01:
            return BOMB
        data = bytearray(zlib.decompress(body))
        at = luck.randrange(len(data))
        data[at : at + 4] = luck.choice(
            (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\0", b" ", b"\0\1\0\0", b"")
        )
        return zlib.compress(bytes(data)) + luck.choice((b"", b"", b"more"))

    def other_body(self, draft: Draft) -> None:
        other = self._luck.choice(self._requests)
        draft.body, draft.kind = other.body, other.kind

    # -- frame -----------------------------------------------------------------------------------------------

    def flip_bytes(self, draft: Draft) -> None:
        places = [self._luck.random() for _ in range(self._luck.choice((1, 1, 3, 10)))]
        bit = self._luck.randrange(8)

        def flip(data: bytes) -> bytes:
            changed = bytearray(data)
            for place in places:  # behind the prefix: lies about lengths are a mutation of their own
                if len(changed) > 8:
                    changed[8 + int(place * (len(changed) - 8))] ^= 1 << bit
            return bytes(changed)

        draft.after.append(flip)

    def lying_lengths(self, draft: Draft) -> None:
        luck = self._luck
        which = luck.choice((0, 0, 4, 4, 4))
        value = luck.choice(
            (0, 1, 3, 4, 8, 2**24, 2**24 + 1, 2**31 - 1, -1, -(2**31), 0x02000000, 0x01FFFFFF, 0xFFFFFF)
        )
        drift = luck.choice((None, None, -1, 1, 9))

        def lie(data: bytes) -> bytes:
            if len(data) < 8:  # cut already
                return data
            (true,) = struct.unpack_from(">i", data, which)
            changed = bytearray(data)
            struct.pack_into(">i", changed, which, value if drift is None else true + drift)
            return bytes(changed)

        draft.after.append(lie)

    def cut(self, draft: Draft) -> None:
        """Cut the frame and say so in its length, as often as not."""
        place, is_honest = self._luck.random(), self._luck.random() < 0.7

        def shorten(data: bytes) -> bytes:
            kept = data[: max(8, int(place * len(data)))]
            return struct.pack(">i", len(kept) - 4) + kept[4:] if is_honest else kept

        draft.after.append(shorten)

    def garbage(self, draft: Draft) -> None:
        junk = self._luck.choice(
            (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\0\x01\0", b"\0" * 16, b"\xff" * 16, b"*1\r\n$4\r\nPING\r\n",
             self._luck.randbytes(40))
        )  # fmt: skip
        draft.after.append(lambda data: junk)


MUTATIONS: dict[Callable[[Mutator, Draft], None], int] = {
    Mutator.replace_value: 24,
    Mutator.change_name: 8,
    Mutator.drop_field: 6,
    Mutator.rename_field: 4,
    Mutator.add_fields: 1,
    Mutator.large_field: 2,
    Mutator.typed_value: 5,
    Mutator.header_member: 3,
    Mutator.other_code: 5,
    Mutator.flags: 4,
    Mutator.extra_members: 3,
    Mutator.body_bytes: 10,
    Mutator.body_shape: 16,
    Mutator.other_body: 3,
    Mutator.flip_bytes: 3,
    Mutator.lying_lengths: 1,
    Mutator.cut: 1,
    Mutator.garbage: 1,
}
WEIGHTS = tuple(MUTATIONS.values())
MUTATIONS = tuple(MUTATIONS)  # type: ignore[assignment]


def _places(value: object) -> list[tuple[object, object]]:
    """Every member and item of a JSON value, as its holder and its key."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found: list[tuple[object, object]] = []
    for key, item in inner:
        found.append((value, key))
        found += _places(item)
    return found


# -- encoding without a conscience ---------------------------------------------------------------------------


def encode(draft: Draft) -> bytes:
    header = _binary(draft) if draft.binary else _json_header(draft)
    word = len(header) & 0xFFFFFF | (1 << 24 if draft.binary else 0)
    return struct.pack(">iI", 4 + len(header) + len(draft.body), word) + header + draft.body


def _json_header(draft: Draft) -> bytes:
    members = {
        "code": draft.code,
        "extFields": draft.fields,
        "flag": draft.flag,
        "language": draft.language,
        "opaque": draft.opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": draft.version,
    }
    text = json.dumps(members, separators=(",", ":"), ensure_ascii=False)
    for name, value in draft.extra:
        text = f'{text[:-1]},"{name}":{value}}}'
    return text.encode("utf-8", "surrogatepass")


def _binary(draft: Draft) -> bytes:
    ext = b"".join(_field(name, value) for name, value in [*draft.fields.items(), *draft.extra])
    head = (
        _number(draft.code, 2),
        _number(draft.language, 1),
        _number(draft.version, 2),
        _number(draft.opaque, 4),
        _number(draft.flag, 4),
    )
    return b"".join(head) + bytes(4) + struct.pack(">i", len(ext)) + ext


def _field(name: str, value: object) -> bytes:
    key = name.encode("utf-8", "surrogatepass")[:32767]
    data = (value if isinstance(value, str) else json.dumps(value)).encode("utf-8", "surrogatepass")
    return struct.pack(">h", len(key)) + key + struct.pack(">i", len(data)) + data


def _number(value: object, size: int) -> bytes:
    number = value if isinstance(value, int) else 0
    return (number & (1 << 8 * size) - 1).to_bytes(size, "big")


# -- what has to become of it --------------------------------------------------------------------------------


def expected(data: bytes) -> tuple[Expected, list[tuple[int, int]]]:
    """What a server does with bytes, which mostly are one frame; code and opaque of the answers that it owes."""
    owed: list[tuple[int, int]] = []
    at = 0
    try:
        while at < len(data):
            size = frame_size(data, at) if len(data) - at >= 8 else len(data) + 1
            if size > len(data) - at:
                return Expected.AWAITED, owed
            try:
                command = decode_frame(data, at, at + size)
                if not command.flag & (ONEWAY_FLAG | RESPONSE_FLAG):
                    owed.append((command.code, command.opaque))
            except FrameError as error:
                if error.opaque is None:
                    raise
                owed.append((0, error.opaque))
            at += size
    except FrameError:
        return Expected.CLOSED, owed
    return Expected.HANDLED, owed
