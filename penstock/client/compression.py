"""Bodies, packed and unpacked.

    sysFlag bit 0      packed
    sysFlag bits 8-10  0x100 lz4 frame, 0x200 zstd frame, 0x300 zlib; 0 also means zlib (older clients)

Rules: unpacking is bounded (A5): more than the limit raises before the memory is used, however small the packed
body is. zlib is always there; lz4 and zstd need the packages of these names, and a message packed with one that
is not installed raises with its name. Pure functions, any thread.
"""

from __future__ import annotations

import importlib
import zlib
from types import ModuleType
from typing import Any

from penstock.client.options import Compression
from penstock.errors import CodecError, MessageTooLargeError, OptionError
from penstock.message import SystemFlag

UNPACKED_BYTES_MAX = 4 * 1024 * 1024
_FLAGS = {Compression.LZ4: 0x100, Compression.ZSTD: 0x200, Compression.ZLIB: 0x300}
_KINDS = {0: Compression.ZLIB, **{flag: kind for kind, flag in _FLAGS.items()}}
_PACKAGES = {Compression.LZ4: ("lz4.frame", "lz4"), Compression.ZSTD: ("zstandard", "zstandard")}


def flag_of(kind: Compression) -> int:
    """The sysFlag bits of a body packed this way."""
    return SystemFlag.COMPRESSED | _FLAGS[kind] if kind is not Compression.NONE else 0


def kind_of(sys_flag: int) -> Compression:
    """How a body with this flag is packed."""
    if not sys_flag & SystemFlag.COMPRESSED:
        return Compression.NONE
    kind = _KINDS.get(sys_flag & SystemFlag.COMPRESSION_MASK)
    if kind is None:
        raise CodecError(f"unknown compression {sys_flag & SystemFlag.COMPRESSION_MASK:#x}")
    return kind


def require(kind: Compression) -> None:
    """Refuse a way of packing whose package is not installed."""
    if kind in _PACKAGES and _package(kind) is None:
        name = _PACKAGES[kind][1]
        raise OptionError(
            f"compression {kind.value!r} needs the package {name!r}", f"run: pip install {name}"
        )


def pack(body: bytes, kind: Compression, level: int = 5) -> bytes:
    """The packed body."""
    if kind is Compression.ZLIB:
        return zlib.compress(body, level)
    if kind is Compression.NONE:
        return body
    require(kind)
    package: Any = _package(kind)
    if kind is Compression.LZ4:
        return bytes(package.compress(body))
    return bytes(package.ZstdCompressor(level=level).compress(body))


def unpack(body: bytes, sys_flag: int, limit: int = UNPACKED_BYTES_MAX) -> bytes:
    """The body as it was sent, at most `limit` bytes. CodecError if it is not packed as its flag says."""
    kind = kind_of(sys_flag)
    if kind is Compression.NONE:
        return body
    if kind is Compression.ZLIB:
        return _drain(zlib.decompressobj(), body, limit, zlib.error)
    require(kind)
    package: Any = _package(kind)
    if kind is Compression.LZ4:
        return _drain(package.LZ4FrameDecompressor(), body, limit, RuntimeError)
    return _unpack_zstd(package, body, limit)


def _drain(stream: Any, body: bytes, limit: int, error_class: type[Exception]) -> bytes:
    try:
        data = bytes(stream.decompress(body, limit + 1))
    except error_class as error:
        raise CodecError(f"the body is not packed as its flag says: {error}") from error
    _check(len(data), limit)
    if not stream.eof:
        raise CodecError("the packed body ends early")
    return data


def _unpack_zstd(package: Any, body: bytes, limit: int) -> bytes:
    try:
        with package.ZstdDecompressor().stream_reader(body) as reader:
            data = bytes(reader.read(limit + 1))
    except package.ZstdError as error:
        raise CodecError(f"the body is not packed as its flag says: {error}") from error
    _check(len(data), limit)
    return data


def _check(size: int, limit: int) -> None:
    if size > limit:
        raise MessageTooLargeError(
            f"the body unpacks to more than {limit} bytes", "raise the limit only if you trust its sender"
        )


def _package(kind: Compression) -> ModuleType | None:
    try:
        return importlib.import_module(_PACKAGES[kind][0])
    except ImportError:
        return None
