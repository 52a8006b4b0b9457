"""What must hold in every history, judged while it happens.

    I1  what was acknowledged as replicated is in the log of every later master
    I4  a position that somebody could see never holds another message
    I5  nobody sees what an election takes back
    I6  one master of an epoch; nobody acknowledges alone after a later one leads
    I7  in the end all logs are the same
    I10 in the end there is a master, and all members are in sync
    and committed offsets never go back

Owned by one simulation.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.testing.simulation.model_log import RECORD, ModelLog


class Broken(AssertionError):
    """A history in which one of them does not hold. The message begins with its id."""


class Judge:
    """See the module's text."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.leaders: dict[int, str] = {}
        # Messages acknowledged as replicated: where, and what.
        self.replicated: dict[int, bytes] = {}
        self.alone = 0
        self.committed = 0
        # Every record that a consumer could have seen, by its position.
        self._seen: list[bytes] = []
        self._shown: dict[str, int] = {}

    def broken(self, text: str) -> Broken:
        self._say(f"BROKEN {text}")
        return Broken(text)

    # -- masters ---------------------------------------------------------------------------------------------

    def leads(self, name: str, epoch: int, log: ModelLog, committed: int) -> None:
        """A broker begins to take messages in an epoch."""
        self._shown[name] = 0
        other = self.leaders.setdefault(epoch, name)
        if other != name:
            raise self.broken(f"I6: {name} and {other} both lead epoch {epoch}")
        for position, record in self.replicated.items():
            if log.record(position) != record:
                raise self.broken(
                    f"I1: {name} leads epoch {epoch} without the replicated message at {position}"
                )
        if committed < self.committed:
            raise self.broken(f"{name} leads epoch {epoch} at offset {committed}, of {self.committed}")

    def acknowledges_alone(self, name: str, epoch: int) -> None:
        """A broker acknowledges what only it has."""
        self.alone += 1
        if any(later > epoch for later in self.leaders):
            raise self.broken(f"I6: {name} acknowledges alone in epoch {epoch}, of {max(self.leaders)}")

    def acknowledges_replicated(self, position: int, record: bytes) -> None:
        self.replicated[position] = record

    def tells_offset(self, name: str, offset: int) -> None:
        """A committed offset was answered for, or told."""
        if offset < self.committed:
            raise self.broken(f"{name} tells the committed offset {offset}, of {self.committed}")
        self.committed = offset

    # -- readers ---------------------------------------------------------------------------------------------

    def shows(self, name: str, log: ModelLog) -> None:
        """What a consumer may see of a log."""
        seen, end = self._seen, log.visible_offset // RECORD
        # What a log showed before it is not read again, but for the newest: everything is compared in the end.
        shown = self._shown.get(name, 0)
        self._shown[name] = end
        first = max(0, min(shown, end) - 4)
        for number in range(first, end):
            record = log.record(number * RECORD)
            if number < len(seen):
                if seen[number] != record:
                    raise self.broken(f"I4, I5: {name} shows another message at {number * RECORD}")
            else:
                seen.append(record)

    # -- the end ---------------------------------------------------------------------------------------------

    def settles(self, logs: dict[str, ModelLog], members: int, in_sync: int, master: str | None) -> None:
        """Everything works again, and had time."""
        if master is None:
            raise self.broken("I10: there is no master long after everything works again")
        if in_sync != members:
            raise self.broken(f"I10: {in_sync} of {members} are in sync long after everything works again")
        expected = logs[master]
        for name, log in logs.items():
            if log.data != expected.data:
                raise self.broken(f"I7: the logs of {name} and of the master {master} differ")
        for position, record in self.replicated.items():
            if expected.record(position) != record:
                raise self.broken(f"I1: the replicated message at {position} is gone")
        for number, record in enumerate(self._seen):
            if expected.record(number * RECORD) != record:
                raise self.broken(f"I5: what was seen at {number * RECORD} is gone")
