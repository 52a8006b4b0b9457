"""Text of messages, names and paths made safe for a terminal.

Whoever sends a message chooses its bytes. Printed as they are, they could move the cursor, recolour the screen,
turn the reading direction round or forge a second line. Rule: nothing that came from a store or from outside
is printed without passing through here, or through JSON in ASCII.
"""

from __future__ import annotations

from binascii import b2a_base64

LINE_MAX = 2_000
_SPACES_IN_TEXT = frozenset("\t\n\r")


def printable(text: str, limit: int | None = None) -> str:
    """The text in one line with everything invisible or active escaped, cut to `limit` characters."""
    cut = text if limit is None else text[: limit + 1]
    safe = "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode("ascii")
        for char in cut
    )
    return safe if limit is None or len(safe) <= limit else safe[: max(limit - 1, 0)] + "…"


def one_line(text: str) -> str:
    """An error or a finding: one line, however long and whatever its parts were."""
    return printable(" ".join(text.split("\n")), LINE_MAX)


def body_text(body: bytes) -> tuple[str, str]:
    """A body as (text, encoding): as it is where it is readable text, in base64 otherwise."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return b2a_base64(body, newline=False).decode("ascii"), "base64"
    if all(char.isprintable() or char in _SPACES_IN_TEXT for char in text):
        return text, "utf-8"
    return b2a_base64(body, newline=False).decode("ascii"), "base64"
