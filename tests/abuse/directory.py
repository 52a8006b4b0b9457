"""What may be in a data directory, whatever names its clients used."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.store.layout import is_topic

PLACES = {
    "commitlog": re.compile(r"\d{20}"),
    "index": re.compile(r"\d{17}"),
    "prepare": re.compile(r".*"),
    "config": re.compile(r"[a-zA-Z]+\.json(\.bak|\.tmp)?|timercheck(\.bak|\.tmp)?|producerSequences(\.tmp)?"),
    "timerlog": re.compile(r"\d{20}"),
}
FILES = {"checkpoint", "abort", "lock", "timerwheel", "penstock.manifest.json", "penstock.manifest.json.tmp"}


def assert_tidy(root: Path) -> None:
    """Only what a store makes is there, and no name has become more than one folder."""
    strange = [path for path in root.rglob("*") if not belongs(path.relative_to(root).parts, path.is_dir())]
    assert not strange, strange[:10]
    assert not [path for path in root.rglob("*") if path.is_symlink()]


def belongs(parts: tuple[str, ...], is_folder: bool) -> bool:
    head, *rest = parts
    if head == "consumequeue":
        kinds = (is_topic, str.isdigit, re.compile(r"\d{20}").fullmatch)
        return len(rest) <= 3 and all(kind(part) for kind, part in zip(kinds, rest, strict=False))
    if head in PLACES:
        return not rest or (len(rest) == 1 and PLACES[head].fullmatch(rest[0]) is not None)
    return not rest and not is_folder and head in FILES
