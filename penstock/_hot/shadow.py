"""What the hot modules need of the `cython` module when it is not installed: types that mean nothing and
decorators that change nothing. The compiled form never sees this file."""

from __future__ import annotations

from typing import Any

compiled = False


def _same(thing: Any) -> Any:
    return thing


cclass = cfunc = ccall = inline = final = _same


class _Block:
    """`with cython.nogil:` and `@cython.nogil` in the pure form: an ordinary block, an ordinary function."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def __call__(self, function: Any) -> Any:
        return function


nogil = gil = _Block()


def exceptval(*_: Any, **__: Any) -> Any:
    return _same


def cast(_: Any, value: Any) -> Any:
    return value


def __getattr__(name: str) -> Any:
    """Type names: `cython.int`, `cython.p_uchar` and so on, which only annotations mention."""
    if name.startswith("__"):
        raise AttributeError(name)
    return Any
