"""What clients ask of a simulated broker: to store a message, to commit an offset.

In the order of `broker/writing.py` and `broker/side_tables.py`, with the judge told of every acknowledgement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.replication.waiting import Outcome
from penstock.store import Durability

if TYPE_CHECKING:
    from penstock.testing.simulation.broker import SimBroker


def send(broker: SimBroker, message: int, demand: Durability | None, done: Callable[[bool], None]) -> None:
    """Store a message, as `broker/writing.py` does; `done` with whether it was acknowledged."""
    if broker.waits.refusal(demand) is not None or broker.leading is None:
        done(False)
        return
    leading = broker.leading
    position = broker.log.max_offset
    end = broker.log.append(message, leading.epoch)
    record = broker.log.record(position)
    broker.sync_soon()
    leading.appended()
    if broker.log.bounded_at is None:
        broker.judge.shows(broker.name, broker.log)

    def replicated(outcome: Outcome) -> None:
        if outcome is Outcome.REPLICATED:
            broker.judge.acknowledges_replicated(position, record)
        done(outcome is Outcome.REPLICATED)

    def flushed() -> None:
        if demand is not Durability.MEMORY and broker.waits.waits:
            broker.waits.when_replicated(end, demand, replicated)
        elif broker.waits.lapsed() is not None:
            done(False)
        else:
            tracker = leading.tracker
            if broker.leading is leading and tracker.is_alone:
                # Nobody else can be elected, so this is as good as replicated.
                broker.judge.acknowledges_replicated(position, record)
            else:
                broker.judge.acknowledges_alone(broker.name, leading.epoch)
            done(True)

    if broker.log.is_sync:
        broker.synced_waiters.append((end, flushed))
    else:
        flushed()


def commit(broker: SimBroker, done: Callable[[bool], None]) -> None:
    """Commit the next offset; it is answered for when every member of the set has it."""
    leading = broker.leading
    if leading is None or not broker.membership.is_master:
        done(False)
        return
    broker.committed += 1
    offset = broker.committed

    def replicated(outcome: Outcome) -> None:
        if outcome is Outcome.REPLICATED:
            broker.judge.tells_offset(broker.name, max(offset, broker.judge.committed))
        done(outcome is Outcome.REPLICATED)

    leading.send_tables(b"%d" % offset, replicated)
