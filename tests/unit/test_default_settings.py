"""The tables of default settings in the compatibility page say what our options say. What RocketMQ's say is compared
by tests/interop/test_default_settings.py, which reads its classes."""

from __future__ import annotations

import pytest

from tests.support.default_settings import (
    Difference,
    default,
    differences,
    find,
    option_name,
    patterns,
    shown,
)


@pytest.mark.parametrize("row", differences(), ids=lambda row: row.setting)
def test_a_row_of_the_page_has_our_default(row: Difference) -> None:
    key = find(row.setting)
    assert (row.option, row.ours) == (option_name(key), shown(default(key)))


def test_rows_and_patterns_are_there_once() -> None:
    settings = [row.setting for row in differences()]
    assert len(settings) == len(set(settings)) > 10
    assert len(patterns()) == len(set(patterns())) > 50
