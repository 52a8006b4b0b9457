"""Write the screens in the pages: those of tests/unit/cli/screens/, which tests compare with what commands show.

    <!-- screens: cluster -->       the last screen of each command in cluster.txt
    <!-- screens: broker-set 2 -->  the second one

stands before a block of ```text, whose lines with `$ ` name the commands. `make screens` runs this after it has
written the stored screens; tests/unit/cli/test_documents.py compares.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "tests" / "unit" / "cli" / "screens"
BLOCK = re.compile(r"(<!-- screens: ([a-z-]+)(?: (\d+))? -->\n```text\n)(.*?)(\n```)", re.S)


def stored(name: str) -> dict[str, list[str]]:
    """The screens of a file by their first line, without the exit codes 0; the others are said as the shell would."""
    found: dict[str, list[str]] = {}
    text = (STORED / f"{name}.txt").read_text(encoding="utf-8")
    for part in re.split(r"^(?=\$ )", text, flags=re.M)[1:]:
        screen, _, code = part.rstrip("\n").rpartition("\n[")
        found.setdefault(screen.partition("\n")[0], []).append(
            screen if code == "0]" else f"{screen}\n[{code}"
        )
    return found


def with_screens(page: str) -> str:
    """The page with every screen as it is stored."""

    def fill(match: re.Match[str]) -> str:
        screens = stored(match[2])
        commands = [line for line in match[4].splitlines() if line.startswith("$ ")]
        number = int(match[3] or 0)
        return match[1] + "\n\n".join(screens[line][number - 1] for line in commands) + match[5]

    return BLOCK.sub(fill, page)


def main() -> None:
    for path in sorted(ROOT.glob("docs/**/*.md")):
        page = path.read_text(encoding="utf-8")
        if (made := with_screens(page)) != page:
            path.write_text(made, encoding="utf-8")
            sys.stdout.write(f"{path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
