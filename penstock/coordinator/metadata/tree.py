"""The entries in memory: what SQLite's backend and the simulated one are made of.

Rules. `plan` looks at a transaction and changes nothing: it raises the error of the first operation that cannot be,
or says which entries would be how. `apply` makes a plan true and cannot fail. Between the two nothing else is
applied; in between, the owner may make the plan durable. No I/O, no clock, no sessions: an owner is a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from penstock.coordinator.metadata.paths import (
    ROOT,
    check_entry_path,
    check_operations,
    check_path,
    name_of,
    parent_of,
    parents_of,
)
from penstock.coordinator.metadata.port import Check, Create, Delete, Entry, Operation, Set
from penstock.errors import (
    EntryExistsError,
    MetadataError,
    NoEntryError,
    NotEmptyError,
    VersionConflictError,
)

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Node:
    """An entry, who made it if it is ephemeral, and how many are right below it."""

    value: bytes
    version: int = 0
    owner: int | None = None
    child_count: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """How entries will be (None: gone), and the paths whose watchers are told, in order."""

    nodes: dict[str, Node | None]
    told: tuple[str, ...]


class Tree:
    """All entries, by path."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {ROOT: Node(b"")}
        self._children: dict[str, set[str]] = {}
        self._owned: dict[int, set[str]] = {}

    def __len__(self) -> int:
        return len(self._nodes) - 1

    def load(self, rows: Iterable[tuple[str, bytes, int]]) -> None:
        """Entries as they were written, into an empty tree. NoEntryError if one's parent is not among them."""
        for path, value, version in sorted(rows):
            parent = parent_of(check_entry_path(path))
            if parent not in self._nodes:
                raise NoEntryError(f"{path} has no parent")
            self._put(path, Node(value, version))
            above = self._nodes[parent]
            self._nodes[parent] = replace(above, child_count=above.child_count + 1)

    def get(self, path: str) -> Entry | None:
        node = self._nodes.get(check_path(path))
        return None if node is None else entry_of(path, node)

    def node(self, path: str) -> Node | None:
        return self._nodes.get(path)

    def children(self, path: str) -> tuple[str, ...]:
        return tuple(sorted(self._children.get(check_path(path), ())))

    def owned_by(self, owner: int) -> tuple[str, ...]:
        """Paths of the ephemeral entries of one owner, sorted."""
        return tuple(sorted(self._owned.get(owner, ())))

    def plan(self, operations: Sequence[Operation], owner: int) -> Plan:
        """What the operations, one after the other, would do; or the error of the first that cannot be."""
        check_operations(operations)
        planning = _Planning(self._nodes, owner)
        for operation in operations:
            planning.add(operation)
        return Plan(planning.nodes, tuple(planning.told))

    def apply(self, plan: Plan) -> None:
        for path, node in plan.nodes.items():
            self._remove(path)
            if node is not None:
                self._put(path, node)

    def _put(self, path: str, node: Node) -> None:
        self._nodes[path] = node
        if path == ROOT:
            return
        self._children.setdefault(parent_of(path), set()).add(name_of(path))
        if node.owner is not None:
            self._owned.setdefault(node.owner, set()).add(path)

    def _remove(self, path: str) -> None:
        node = self._nodes.pop(path, None)
        if node is None or path == ROOT:
            return
        _take(self._children, parent_of(path), name_of(path))
        if node.owner is not None:
            _take(self._owned, node.owner, path)


class _Planning:
    """One transaction: the tree as it is, and the changes over it so far."""

    def __init__(self, below: dict[str, Node], owner: int) -> None:
        self._below = below
        self._owner = owner
        self.nodes: dict[str, Node | None] = {}
        # A dict for its order.
        self.told: dict[str, None] = {}

    def add(self, operation: Operation) -> None:
        path = operation.path
        match operation:
            case Create(value=value, ephemeral=ephemeral):
                self._create(path, value, self._owner if ephemeral else None)
            case Set(value=value, version=version):
                node = self._expect(path, version)
                changed = replace(node, value=value, version=node.version + 1)
                self._change(path, changed)
            case Delete(version=version):
                if self._expect(path, version).child_count:
                    raise NotEmptyError(f"{path} has entries below it", "delete those first")
                self._change(path, None)
                self._count(parent_of(path), -1)
            case Check(version=version):
                self._expect(path, version)

    def _create(self, path: str, value: bytes, owner: int | None) -> None:
        if self._find(path) is not None:
            raise EntryExistsError(f"{path} is there already", "read it, or set it")
        for parent in parents_of(path):
            above = self._find(parent)
            if above is None:
                self._change(parent, Node(b""))
                self._count(parent_of(parent), 1)
            elif above.owner is not None:
                raise MetadataError(
                    f"{path} cannot be made: {parent} is ephemeral", "put it below an entry that stays"
                )
        self._change(path, Node(value, owner=owner))
        self._count(parent_of(path), 1)

    def _find(self, path: str) -> Node | None:
        return self.nodes[path] if path in self.nodes else self._below.get(path)

    def _expect(self, path: str, version: int | None) -> Node:
        node = self._find(path)
        if node is None:
            raise NoEntryError(f"there is no {path}", "create it first")
        if version is not None and version != node.version:
            raise VersionConflictError(
                f"{path} has version {node.version}, not {version}", "read it again and decide anew"
            )
        return node

    def _change(self, path: str, node: Node | None) -> None:
        self.nodes[path] = node
        self.told[path] = None

    def _count(self, parent: str, step: int) -> None:
        above = self._find(parent)
        assert above is not None  # Whoever has or gets a child is there.
        self.nodes[parent] = replace(above, child_count=above.child_count + step)
        self.told[parent] = None


def entry_of(path: str, node: Node) -> Entry:
    return Entry(path, node.value, node.version, node.owner is not None)


def _take(sets: dict[Key, set[str]], key: Key, item: str) -> None:
    items = sets[key]
    items.discard(item)
    if not items:
        del sets[key]
