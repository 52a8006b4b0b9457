"""Whether this coordinator leads: the election's news as four events, and the listeners that act on them.

                  TOOK_OVER               UNSURE
    standing by ────────────► leading ◄──────────► unsure
         ▲                       │      RESUMED       │
         └───────────────────────┴───── RESTED ◄──────┘

    TOOK_OVER    it leads, in a new term: nothing that was known from before counts
    UNSURE       it cannot be sure: grant and change nothing, forget nothing
    RESUMED      it leads still, in the same term: nobody else did meanwhile
    RESTED       it does not lead: let go of everything that belonged to the term

Rules. Listeners are called in the order in which they were added, in the event loop, once for each event; one that
fails is logged and the others are still called. `is_sure` is asked at the moment of acting, never remembered: a
process that was stopped for seconds must find out before it grants anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum

from penstock.coordinator.metadata import Election, MetadataStore, Watch

_LOG = logging.getLogger("penstock.coordinator")
PATH = "/coordinator"


class Lead(Enum):
    """See the module's text."""

    TOOK_OVER = "took over"
    UNSURE = "unsure"
    RESUMED = "resumed"
    RESTED = "rested"


LeadListener = Callable[[Lead, int], None]


class Leadership:
    """One coordinator's part in the election."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._election: Election | None = None
        self._watch: Watch | None = None
        self._listeners: list[LeadListener] = []
        self._last = Lead.RESTED
        # The term in which it leads, or led last.
        self._term = 0
        self.identity = ""

    def listen(self, listener: LeadListener) -> None:
        """Call `listener(event, term)`."""
        self._listeners.append(listener)

    async def start(self, identity: str) -> None:
        """Stand for election under the address at which others reach this coordinator."""
        self.identity = identity
        self._election = self._store.election(PATH, identity)
        self._watch = self._election.on_change(lambda _: self._look())
        await self._election.start()
        self._look()

    async def stop(self) -> None:
        """Rest first, then let go: whoever comes next must not find two."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._become(Lead.RESTED)
        if self._election is not None:
            await self._election.stop()

    @property
    def leads(self) -> bool:
        """Whether it leads as far as it knows, surely or not."""
        return self._last is not Lead.RESTED

    @property
    def is_sure(self) -> bool:
        """Whether it leads, surely, at this moment, and has begun to act in that term."""
        election = self._election
        return (
            election is not None
            and self._last in (Lead.TOOK_OVER, Lead.RESUMED)
            and election.term == self._term
            and election.is_leader
        )

    @property
    def term(self) -> int:
        return 0 if self._election is None else self._election.term

    @property
    def leader(self) -> str | None:
        """The address of the coordinator that leads, as far as is known."""
        return None if self._election is None else self._election.leader

    def doubt(self, term: int) -> None:
        """A set was written in a later term than ours: act no more, whatever the election says."""
        if term <= self._term:
            return
        if self.is_sure:
            # Terms only grow, unless someone took the entry that counts them away.
            _LOG.error(
                "this coordinator leads in term %d, but a broker set was written in term %d: set the entry "
                "%s/term to %d and restart",
                *(self._term, term, PATH, term),
            )
        self._become(Lead.RESTED)

    def _look(self) -> None:
        election = self._election
        if election is None:
            return
        is_same = election.leader == self.identity and election.term == self._term
        if not is_same:
            self._become(Lead.RESTED)
        if not election.is_leader:
            if self.leads:
                self._become(Lead.UNSURE)
        elif is_same:
            if self._last is Lead.UNSURE:
                self._become(Lead.RESUMED)
        else:
            self._term = election.term
            self._become(Lead.TOOK_OVER)

    def _become(self, event: Lead) -> None:
        if event is self._last:
            return
        self._last = event
        # An election is everyday life; not knowing any more whether one leads is not.
        level = logging.WARNING if event is Lead.UNSURE else logging.INFO
        _LOG.log(level, "coordinator %s, term %d: %s", self.identity, self._term, event.value)
        for listener in list(self._listeners):
            try:
                listener(event, self._term)
            except Exception:
                _LOG.exception("a listener of the lead failed at %r", event.value)
