"""How long a test with a long variant runs, and from which seed.

    make test               the shortest variant that can still fail for the right reason
    make soak, make slice   the long one: PENSTOCK_LONG=1

A test that has both carries the marker `long`, so that a long run finds it. A seed decides what is done, in which
order and to whom; PENSTOCK_SEED repeats it, as far as the timing of processes allows. A failure prints the seed.
"""

from __future__ import annotations

import os
import random
from typing import TypeVar

Amount = TypeVar("Amount", int, float)

LONG = os.environ.get("PENSTOCK_LONG") == "1"


def by_length(short: Amount, long: Amount) -> Amount:
    """How many rounds, seconds or examples this run does."""
    return long if LONG else short


def chosen_seed() -> int:
    """The seed that PENSTOCK_SEED names, or another one each time."""
    given = os.environ.get("PENSTOCK_SEED")
    return int(given) if given else random.SystemRandom().randrange(1_000_000_000)


def first_seed(default: int) -> int:
    """The same for tests that always run the same seeds unless one is named."""
    return int(os.environ.get("PENSTOCK_SEED") or default)
