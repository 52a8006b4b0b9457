"""Expressions at random, most of them right and some not, over the properties that `PROPERTY_NAMES` has."""

from __future__ import annotations

from random import Random

PROPERTY_NAMES = ("a", "b", "s", "t", "q")
VALUES = (
    "5",
    "-5",
    "5.0",
    "7",
    "3000000000",
    "x",
    "north",
    "true",
    "FALSE",
    " 5",
    "NaN",
    "-0.0",
    "0",
    "1e3",
    "+7",
)
LITERALS = (
    "5",
    "7L",
    "5.0",
    "3000000000",
    "'5'",
    "'north'",
    "''",
    "true",
    "false",
    "null",
    "0",
    ".5",
    "1e3",
    "-5",
)
_SIGNS = ("=", "<>", "<", "<=", ">", ">=")
_WORDS = ("contains", "startswith", "endswith")


class Expressions:
    """What one seed decides."""

    def __init__(self, random: Random, *, with_parts: bool = True) -> None:
        self._random = random
        self._with_parts = with_parts

    def properties(self) -> dict[str, str]:
        """Of a message; some are missing."""
        chosen = self._random
        return {name: chosen.choice(VALUES) for name in PROPERTY_NAMES[:-1] if chosen.random() < 0.7}

    def expression(self, depth: int = 3) -> str:
        chosen = self._random
        roll = chosen.random()
        if depth == 0 or roll < 0.35:
            return self._comparison(depth)
        if roll < 0.75:
            word = chosen.choice(("and", "or"))
            return f"{self.expression(depth - 1)} {word} {self.expression(depth - 1)}"
        if roll < 0.87:
            return f"({self.expression(depth - 1)})"
        return f"not {self.expression(depth - 1)}"

    def _comparison(self, depth: int) -> str:
        chosen = self._random
        left, roll = self._operand(depth), chosen.random()
        negated = chosen.choice(("", "not "))
        if roll < 0.5:
            return f"{left} {chosen.choice(_SIGNS)} {self._operand(depth)}"
        if roll < 0.6:
            return f"{left} is {negated}null"
        if roll < 0.7:
            return f"{left} {negated}between {self._operand(0)} and {self._operand(0)}"
        if roll < 0.8:
            strings = ", ".join(f"'{chosen.choice(VALUES)}'" for _ in range(chosen.randint(1, 6)))
            return f"{left} {negated}in ({strings})"
        if roll < 0.93 and self._with_parts:
            return f"{left} {negated}{chosen.choice(_WORDS)} '{chosen.choice(VALUES)[:2]}'"
        return left

    def _operand(self, depth: int) -> str:
        chosen = self._random
        roll = chosen.random()
        if roll < 0.65:
            return chosen.choice(PROPERTY_NAMES)
        if roll < 0.9 or depth == 0:
            return chosen.choice(LITERALS)
        if roll < 0.95:
            return f"({self.expression(depth - 1)})"
        return f"{chosen.choice('+-')}{self._operand(depth - 1)}"
