"""Penstock: a message queue in Python, wire- and store-compatible with Apache RocketMQ.

This is the only public door: what is not named in `__all__` may change without notice.
"""

from penstock.errors import PenstockError

__version__ = "0.1.0"

__all__ = ["PenstockError", "__version__"]
