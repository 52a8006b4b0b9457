"""RocketMQ's own evaluator of SQL92 filters, asked for whole tables at once: one Java process for one table.

Answers are text: `!` for an expression that does not parse, else a letter for each set of properties, T, F, N (null) or
E (evaluating failed, which a broker takes for no match).
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote_plus

from tests.interop.java_errors import JavaStoreError
from tests.interop.java_release import JavaBuild, prepare_build

RELEASES: tuple[str, ...] = ("5.3.3", "4.9.7")
"""Releases whose evaluator can be asked; of 4.9 it is the newest that the repository has."""


class TagAnswer(NamedTuple):
    """What a subscription to a list of tags says."""

    text: str
    tags: list[str]
    codes: list[int]


def java_answers(
    version: str, expressions: Sequence[str], property_sets: Iterable[Mapping[str, str]]
) -> list[str]:
    """What a release says to each expression."""
    lines = [_line("P", *(f"{_field(k)}={_field(v)}" for k, v in pairs.items())) for pairs in property_sets]
    return _ask(version, lines, [_line("E", _field(expression)) for expression in expressions])


def java_tags(version: str, expressions: Sequence[str]) -> list[TagAnswer | None]:
    """The same for lists of tags; None for those that it refuses."""
    answers = _ask(version, [], [_line("T", _field(expression)) for expression in expressions])
    return [None if answer == "!" else _tag_answer(answer) for answer in answers]


def _tag_answer(line: str) -> TagAnswer:
    text, tags, codes = line.split("\t")
    return TagAnswer(unquote_plus(text), [*map(unquote_plus, tags.split())], [*map(int, codes.split())])


def _ask(version: str, facts: list[str], questions: list[str]) -> list[str]:
    if version not in RELEASES:
        raise ValueError(f"{version} is not pinned; choose one of {', '.join(RELEASES)}")
    home = prepare_build(JavaBuild(f"filter-{version}", f"filter-{version.rpartition('.')[0]}", ("filter",)))
    path = f"{home / 'classes'}:{home / 'lib'}/*"
    done = subprocess.run(
        [
            "java",
            "-Xshare:auto",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            path,
            "penstock.interop.filter.FilterTool",
        ],
        input="".join([*facts, *questions]).encode(),
        capture_output=True,
        check=False,
        timeout=120,
    )
    answers = done.stdout.decode().splitlines()
    if done.returncode or len(answers) != len(questions):
        raise JavaStoreError(f"FilterTool ended with {done.returncode}: {done.stderr.decode()[-2000:]}")
    return answers


def _field(text: str) -> str:
    return quote(text, safe="")


def _line(*fields: str) -> str:
    return "\t".join(fields) + "\n"
