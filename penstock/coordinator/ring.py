"""A consistent-hash ring: which node a key belongs to, so that a node that comes or goes moves few keys.

    0 ──── a#2 ── b#0 ─────── a#0 ─── b#1 ────── a#1 ──── b#2 ──── 2^32 = 0
                   key ───────▶ a

Every node is on the ring `virtual_nodes` times. A key belongs to the node of the first virtual hash at or behind its
own, round the end. So what a new node gets comes from those behind its points, and nothing else moves; what one that
leaves had goes to the nodes behind its points, and nothing else moves.

Rules. Hashes are unsigned numbers of 32 bits, of a digest that is the same on every machine and in every version:
two coordinators with the same nodes have the same ring, in whatever order the nodes came. Two nodes may have one
virtual hash; it is the first one's by name, and the other's when that one leaves. A node is bound once a key was
given to it (`bind`): the others are on the ring and have nothing to do. No I/O, no lock: owned by an event loop.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections.abc import Iterable
from functools import lru_cache

VIRTUAL_NODES = 64


class HashRing:
    """Nodes, their virtual hashes, and which of them are bound."""

    def __init__(self, nodes: Iterable[str] = (), virtual_nodes: int = VIRTUAL_NODES) -> None:
        if virtual_nodes < 1:
            raise ValueError(f"a ring needs at least one virtual node for each node, not {virtual_nodes}")
        self.virtual_nodes = virtual_nodes
        # Sorted; and the nodes of each virtual hash, the first by name being the one that has it.
        self._hashes: list[int] = []
        self._nodes: dict[int, list[str]] = {}
        self._bound: dict[str, bool] = {}
        # In the order of names, so that each place is the first one's without a look.
        there = self._nodes
        for node in sorted(set(nodes)):
            self._bound[node] = False
            for virtual in virtual_hashes(node, virtual_nodes):
                if virtual in there:
                    there[virtual].append(node)
                else:
                    there[virtual] = [node]
        self._hashes = sorted(there)

    def __len__(self) -> int:
        return len(self._bound)

    def __contains__(self, node: object) -> bool:
        return node in self._bound

    @property
    def nodes(self) -> list[str]:
        return sorted(self._bound)

    @property
    def hashes(self) -> tuple[int, ...]:
        """All virtual hashes, in order."""
        return tuple(self._hashes)

    def node_at(self, virtual_hash: int) -> str:
        """The real node of a virtual hash. KeyError if there is none."""
        return self._nodes[virtual_hash][0]

    # -- nodes -----------------------------------------------------------------------------------------------

    def add(self, node: str) -> None:
        """Put a node on the ring; once is enough."""
        if node not in self._bound:
            for virtual in self._place(node):
                insort(self._hashes, virtual)

    def remove(self, node: str) -> None:
        """Take a node off the ring, if it is there."""
        if self._bound.pop(node, None) is None:
            return
        for virtual in virtual_hashes(node, self.virtual_nodes):
            there = self._nodes[virtual]
            there.remove(node)
            if not there:
                del self._nodes[virtual]
                del self._hashes[bisect_left(self._hashes, virtual)]

    def _place(self, node: str) -> list[int]:
        """Enter a node; the hashes that nobody had before."""
        self._bound[node] = False
        new = []
        for virtual in virtual_hashes(node, self.virtual_nodes):
            there = self._nodes.setdefault(virtual, [])
            if not there:
                new.append(virtual)
            insort(there, node)
        return new

    # -- keys ------------------------------------------------------------------------------------------------

    def owner(self, key: str) -> str | None:
        """The node that a key belongs to; None on an empty ring."""
        if not self._hashes:
            return None
        at = bisect_left(self._hashes, ring_hash(key))
        return self._nodes[self._hashes[at % len(self._hashes)]][0]

    def bind(self, key: str) -> str | None:
        """Give a key to its node, which is bound from then on; the node."""
        node = self.owner(key)
        if node is not None:
            self._bound[node] = True
        return node

    def is_bound(self, node: str) -> bool:
        """Whether anything was given to the node. False for one that is not on the ring."""
        return self._bound.get(node, False)

    @property
    def idle(self) -> list[str]:
        """Nodes that no key has fallen to."""
        return sorted(node for node, is_bound in self._bound.items() if not is_bound)


def ring_hash(text: str) -> int:
    """The place of a text on the ring."""
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=4).digest(), "big")


@lru_cache(maxsize=4_096)
def virtual_hashes(node: str, count: int) -> tuple[int, ...]:
    """The places of a node, each once."""
    return tuple(dict.fromkeys(ring_hash(f"{node}#{number}") for number in range(count)))
