"""Writes the table of requests and rights into the security page: `docs_access.py PAGE`, or `--check PAGE`.

Its source is tests/unit/security/access_matrix.txt, which a test holds against running servers. `--check` writes
nothing and fails if the page is not what would be written.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "tests" / "unit" / "security" / "access_matrix.txt"
BEGIN, END = "<!-- access matrix: made by `make docs-access` -->\n", "<!-- end of the access matrix -->\n"
SERVERS = ("broker", "nameserver", "coordinator")


@dataclass(frozen=True, slots=True)
class Row:
    """One request; the last five columns are answers."""

    code: int
    name: str
    servers: tuple[str, ...]
    needs: tuple[str, ...]
    own: str
    anothers: str
    internal: str
    admin: str
    admin_internal: str


def read_rows(text: str) -> Iterator[str | Row]:
    """Sections' titles, and their rows."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("## "):
            yield line.removeprefix("## ")
        elif line and not line.startswith("#"):
            columns = re.split(r"\s{2,}", line.strip())
            if len(columns) != 9:
                raise SystemExit(f"{SOURCE.name}:{number}: {len(columns)} columns instead of 9")
            code, name, servers, needs, *answers = columns
            yield Row(int(code), name, tuple(servers.split(",")), tuple(needs.split(" + ")), *answers)


def rows() -> list[Row]:
    found = read_rows(SOURCE.read_text(encoding="utf-8"))
    return [row for row in found if isinstance(row, Row)]


def render(text: str) -> str:
    """The tables as Markdown."""
    parts = []
    for one in read_rows(text):
        if isinstance(one, str):
            parts.append(
                f"\n**{one}**\n\n| code | request | at | needs | own | another's | internal | admin |\n"
            )
            parts.append("|---|---|---|---|---|---|---|---|\n")
            continue
        admin = (
            one.admin
            if one.admin_internal in ("-", one.admin)
            else f"{one.admin}; internal {one.admin_internal}"
        )
        cells = [one.code, f"`{one.name}`", ", ".join(one.servers), ", ".join(map(show_need, one.needs))]
        cells += [one.own, one.anothers, one.internal, admin]
        parts.append("| " + " | ".join(map(str, cells)) + " |\n")
    return "".join(parts).lstrip("\n") + "\n"


def show_need(need: str) -> str:
    """As the page says it: `Sub or Get on the topic`."""
    kind, colon, actions = need.partition(": ")
    if not colon:
        kind, _, actions = need.partition(" ")
    if not actions:
        return {"signed": "a signature", "admin": "an admin"}[need]
    places = {
        "Topic": "the topic",
        "Group": "the group",
        "message": "the topic of the message",
        "any Topic": "any topic",
    }
    return f"{actions.replace('|', ' or ')} on {places.get(kind, f'`{kind}`')}"


def with_table(page: str, table: str) -> str:
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit("the page has no place for the table")
    return f"{before}{begin}\n{table}\n{end}{after}".replace("\n\n\n", "\n\n")


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    pages = [argument for argument in arguments if argument != "--check"]
    if len(pages) != 1:
        print("usage: docs_access.py [--check] PAGE", file=sys.stderr)
        return 2
    page = Path(pages[0])
    text = page.read_text(encoding="utf-8")
    wanted = with_table(text, render(SOURCE.read_text(encoding="utf-8")))
    if check and text != wanted:
        print(f"{page} is not what {SOURCE.name} says; run: make docs-access", file=sys.stderr)
        return 1
    if not check:
        page.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
