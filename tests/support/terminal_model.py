"""What a person sees: the lines of a terminal after some output, also those that have scrolled away.

Knows what Penstock's commands send: text, wrapped at the width; carriage return, line feed, tabs and backspace;
cursor moves, erasures and colours. Anything else fails, so that no command sends what this model does not show.
"""

from __future__ import annotations

import re
import unicodedata

_SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")
_NOT_SHOWN = frozenset("mhl")  # colours and modes, such as a hidden cursor
TAB = 8


class TerminalModel:
    """Lines of cells; a wide character takes two, of which the second is empty."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self._lines: list[list[str]] = [[]]
        self._row = self._column = 0

    @property
    def text(self) -> str:
        """The lines without blanks at their ends, and without empty lines at the end."""
        return "\n".join("".join(line).rstrip() for line in self._lines).rstrip("\n")

    def feed(self, output: str) -> None:
        at = 0
        while at < len(output):
            if output[at] != "\x1b":
                self._put(output[at])
                at += 1
                continue
            found = _SEQUENCE.match(output, at)
            assert found is not None, f"unknown control sequence: {output[at : at + 20]!r}"
            self._obey(found[1], found[2])
            at = found.end()

    def _put(self, char: str) -> None:
        match char:
            case "\n":
                self._move_to(self._row + 1)
            case "\r":
                self._column = 0
            case "\b":
                self._column = max(min(self._column, self.columns) - 1, 0)
            case "\t":
                self._column = min(self._column // TAB * TAB + TAB, self.columns - 1)
            case _:
                assert char.isprintable(), f"control character {char!r}"
                self._write(char)

    def _write(self, char: str) -> None:
        width = 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if self._column + width > self.columns:
            self._move_to(self._row + 1)
            self._column = 0
        line = self._lines[self._row]
        end = self._column + width
        line.extend(" " * (end - len(line)))
        line[self._column : end] = [char, *[""] * (width - 1)]
        self._column = end

    def _move_to(self, row: int) -> None:
        self._row = max(row, 0)
        while len(self._lines) <= self._row:
            self._lines.append([])

    def _obey(self, parameters: str, command: str) -> None:
        number = int(parameters) if parameters.isdigit() else 0
        match command:
            case "A":
                self._move_to(self._row - max(number, 1))
            case "B":
                self._move_to(self._row + max(number, 1))
            case "C":
                self._column = min(self._column + max(number, 1), self.columns - 1)
            case "D":
                self._column = max(self._column - max(number, 1), 0)
            case "G":
                self._column = max(number, 1) - 1
            case "K":
                self._erase_line(number)
            case "J" if number == 0:
                self._erase_line(0)
                del self._lines[self._row + 1 :]
            case _:
                assert command in _NOT_SHOWN, f"unknown control sequence: {parameters}{command}"

    def _erase_line(self, part: int) -> None:
        line = self._lines[self._row]
        if part == 0:
            del line[self._column :]
        elif part == 1:
            line[: self._column + 1] = [" "] * min(self._column + 1, len(line))
        else:
            line.clear()


def rendered(output: str, columns: int) -> str:
    """The text on a terminal of this width after this output."""
    model = TerminalModel(columns)
    model.feed(output)
    return model.text
