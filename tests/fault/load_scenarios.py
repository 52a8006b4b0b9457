"""What the broker tests have in common: the topic, questions to the cluster, and the end of every scenario.

A scenario lets a `Load` work, does something to the servers or to the network, and ends with `finish`: producers
stop, groups drain, their offsets are compared with the ends of the queues, the broker goes, and the history is
judged against the store it leaves.
"""

from __future__ import annotations

import penstock
from tests.fault.client_load import AUDIT, WORKERS, Load
from tests.fault.history_checks import Figures, check_history, percentiles
from tests.fault.operation_history import History
from tests.support.server_processes import ServerProcess
from tests.waiting import until_done, wait_until

TOPIC, QUEUES = "orders", 4


def new_history(name_servers: str) -> History:
    """Make the topic, and an empty history for it."""
    with penstock.Admin(name_servers, call_timeout_ms=60_000) as admin:
        admin.create_topic(TOPIC, QUEUES)
    return History(TOPIC, QUEUES)


def queue_ends(name_servers: str) -> dict[int, int]:
    """How many messages each queue has. A name server that has just started learns routes as brokers register."""
    with penstock.Admin(name_servers) as admin:
        queues = until_done(lambda: admin.describe_topic(TOPIC)).queues
        return {item.queue.queue_id: item.max_offset for item in queues}


def committed_offsets(name_servers: str, group: str) -> dict[int, int]:
    with penstock.Admin(name_servers) as admin:
        offsets = until_done(lambda: admin.offsets(group, TOPIC))
        return {queue.queue_id: offset for queue, offset in offsets.items()}


def drain(load: Load, name_servers: str) -> float:
    """Stop the producers and wait for the consumers; the seconds that they needed."""
    load.stop_sending()
    return load.drain(lambda: queue_ends(name_servers))


def finish(history: History, name_servers: str, node: ServerProcess, *, kill: bool = False) -> Figures:
    """After the load has ended: compare offsets, end the broker one way or the other, judge the history."""
    ends = queue_ends(name_servers)
    assert committed_offsets(name_servers, AUDIT) == ends
    # Workers hand messages back. One that no broker would take at the time stays theirs, and holds its queue's offset
    # until it is done: closing then leaves the offset there, so that it comes again.
    workers = committed_offsets(name_servers, WORKERS)
    assert all(0 <= workers[queue_id] <= end for queue_id, end in ends.items())
    if kill:
        node.kill()
    else:
        node.stop()
    return check_history(history, node.data)


def wait_recovered(load: Load, history: History, moment: float) -> None:
    """Wait until a message that was sent after a moment is acknowledged and delivered."""

    def recovered() -> bool:
        load.check()
        return (
            history.first_ok_after(moment) is not None
            and history.first_delivery_after(moment, WORKERS) is not None
        )

    wait_until(recovered, "a message that was sent, acknowledged and delivered after a fault")


def recovery(history: History, moments: list[float]) -> tuple[list[float], list[float]]:
    """For each moment of a fault: seconds until a send that began later was acknowledged, and until a message that
    was sent later was delivered."""
    sending = [at - moment for moment in moments if (at := history.first_ok_after(moment)) is not None]
    consuming = [
        at - moment for moment in moments if (at := history.first_delivery_after(moment, WORKERS)) is not None
    ]
    assert len(sending) == len(consuming) == len(moments), "somebody never recovered"
    return sending, consuming


def recovery_text(history: History, moments: list[float]) -> str:
    sending, consuming = recovery(history, moments)
    return (
        f"first send acknowledged after {percentiles(sending)}; "
        f"first later message delivered after {percentiles(consuming)}"
    )
