"""What can go wrong when Java is asked: one class per meaning, so that a test can expect it by name."""

from __future__ import annotations


class JavaStoreError(Exception):
    """A Java tool failed or answered something unexpected; the message ends with what it said."""


class JavaStoreRefused(JavaStoreError):
    """`load()` returned false: RocketMQ does not accept the directory."""


class JavaStoreLocked(JavaStoreError):
    """Another process holds the directory's lock; nothing in the directory was touched."""


class JavaStoreUnclean(JavaStoreError):
    """`shutdown()` kept the abort file: the store does not consider its stop clean."""


class RegistryOutOfReach(JavaStoreError):
    """Maven could not fetch the release: a fault of the network, not of the project."""
