"""`python -m tests.interop.filter_table`: have RocketMQ's classes write their answers into the table of the unit tests."""

from __future__ import annotations

from tests.interop.java_filter import RELEASES, java_answers
from tests.support.filters.java_table import Row, read_table, write_table


def main() -> None:
    sets, rows = read_table()
    expressions = [row.sql for row in rows]
    new, old = (java_answers(release, expressions, sets) for release in RELEASES)
    write_table(sets, [Row(*row) for row in zip(expressions, new, old, strict=True)])


if __name__ == "__main__":
    main()
