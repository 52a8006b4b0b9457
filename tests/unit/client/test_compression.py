import importlib.util
import zlib

import pytest

from penstock.client.compression import flag_of, kind_of, pack, require, unpack
from penstock.client.options import Compression
from penstock.errors import CodecError, MessageTooLargeError, OptionError

BODY = b"a body that can be made smaller " * 200


def installed(kind):
    name = {Compression.LZ4: "lz4", Compression.ZSTD: "zstandard"}.get(kind)
    return name is None or importlib.util.find_spec(name) is not None


@pytest.mark.parametrize("kind", list(Compression))
def test_what_is_packed_can_be_unpacked(kind):
    if not installed(kind):
        with pytest.raises(OptionError, match="pip install"):
            pack(BODY, kind)
        with pytest.raises(OptionError):
            require(kind)
        with pytest.raises(OptionError):
            unpack(b"x", flag_of(kind))
        return
    packed = pack(BODY, kind)
    assert kind is Compression.NONE or len(packed) < len(BODY)
    assert unpack(packed, flag_of(kind)) == BODY


def test_flags_are_those_on_the_wire():
    assert [flag_of(kind) for kind in Compression] == [0, 0x301, 0x101, 0x201]
    assert kind_of(0x1) is Compression.ZLIB  # clients before 4.9.4 and Go set bit 0 only
    assert kind_of(0x300) is Compression.NONE
    with pytest.raises(CodecError):
        kind_of(0x701)


@pytest.mark.abuse("A5")
def test_a_bomb_is_stopped_at_the_limit():
    bomb = zlib.compress(bytes(64 * 1024 * 1024), 9)
    with pytest.raises(MessageTooLargeError):
        unpack(bomb, 1, limit=1024 * 1024)
    assert len(unpack(zlib.compress(bytes(1000)), 1, limit=1000)) == 1000


@pytest.mark.parametrize("body", [b"", b"not packed", zlib.compress(BODY)[:-10]])
def test_a_body_that_is_not_what_its_flag_says_is_an_error(body):
    with pytest.raises(CodecError):
        unpack(body, 0x301)
