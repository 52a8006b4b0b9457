"""Limits and timings of connections, validated once. Defaults are RocketMQ's where it has them."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import OptionError
from penstock.protocol.command import FrameLimits


@dataclass(frozen=True, slots=True)
class RemotingOptions:
    """What one side of a connection allows the other."""

    # Largest frame accepted (com.rocketmq.remoting.frameMaxLength).
    frame_bytes_max: int = 16 * 1024 * 1024
    # Largest header inside a frame. The properties of a send are in it, and in JSON their separators take six bytes
    # each, so that 32 KiB of properties may become almost 200.
    header_bytes_max: int = 256 * 1024
    # Most ext fields of one header.
    header_fields_max: int = 256
    # Connections of one server in all; more are closed at once.
    connections_max: int = 10_000
    # Connections from one address; more are closed at once.
    connections_per_ip_max: int = 2_000
    # A connection with neither a read nor a write for this long is closed (serverChannelMaxIdleTimeSeconds).
    idle_timeout_ms: int = 120_000
    # A frame that has begun must be complete after this time, and so must the first frame after connecting.
    frame_timeout_ms: int = 30_000
    # Memory for requests of all connections: frames that are not complete, wait for their turn, or are under way.
    # Over this the connections that keep most for longest are closed.
    incomplete_bytes_max: int = 96 * 1024 * 1024
    # Answers waiting for a peer that does not read: over this the connection is closed.
    write_buffer_bytes_max: int = 64 * 1024 * 1024
    # Answers waiting over which no more requests are read from the peer (it resumes when it has read them). While
    # many peers do not read it is less: a quarter of what is left of half of unread_bytes_max.
    write_buffer_pause_bytes: int = 4 * 1024 * 1024
    # Memory for answers that peers have not read yet, of all connections. Over this the connections that leave most
    # unread for longest are closed.
    unread_bytes_max: int = 96 * 1024 * 1024
    # A peer that has read nothing of what waits for it for this long is closed.
    write_timeout_ms: int = 60_000
    # The same while unread answers take more than a quarter of unread_bytes_max.
    write_timeout_pressed_ms: int = 10_000
    # Requests of one connection that may be under way at once; more are answered with SYSTEM_BUSY.
    requests_in_flight_max: int = 4_096
    # How long connecting to a peer may take (connectTimeoutMillis).
    connect_timeout_ms: int = 3_000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise OptionError(f"{name} is {getattr(self, name)}", "it must be positive")
        if self.header_bytes_max >= 1 << 24:
            raise OptionError("header_bytes_max does not fit 24 bits", "use less than 16777216")

    @property
    def limits(self) -> FrameLimits:
        return FrameLimits(self.frame_bytes_max, self.header_bytes_max, self.header_fields_max)
