"""The seed of a fault test, and its name in what a failure prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.effort import chosen_seed


@contextmanager
def seeded(story: Callable[[], str] = lambda: "") -> Iterator[int]:
    """Chooses a seed; a failure says how to repeat it, and tells the story so far."""
    seed = chosen_seed()
    try:
        yield seed
    except BaseException as error:
        error.add_note(f"PENSTOCK_SEED={seed} repeats it as far as timing allows\n{story()}".rstrip())
        raise
