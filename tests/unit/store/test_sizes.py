"""File sizes that are found in the files of a directory."""

from __future__ import annotations

import pytest

from penstock.store.sizes import consistent_size


@pytest.mark.fault("F7")
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([(0, 400), (400, 400), (0, 400)], 400),
        ([(0, 400), (0, 400), (0, 38_707_200)], 400),  # another file was put in the place of one
        ([(0, 400), (0, 100)], 400),  # a damaged file is rather too short than too long
        ([(0, 400), (400, 800)], 400),  # a file of 800 bytes cannot begin there
        ([(0, 410)], 7),
        ([], 7),
    ],
)
def test_the_size_that_most_files_have_is_that_of_all(files: list[tuple[int, int]], expected: int) -> None:
    assert consistent_size(files, 20, 7) == expected
