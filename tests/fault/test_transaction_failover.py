"""The master of a coordinated set dies while transactions are open: the next one knows them and ends them once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import penstock
from penstock import ReceivedMessage, TransactionState
from tests.fault.test_failover import TOPIC, consume_all, ready
from tests.waiting import wait_until

SOON = (
    "--set",
    "broker.transaction_check_interval_ms=200",
    "--set",
    "broker.transaction_timeout_ms=300",
)


class Says:
    """Commits what its body tells it to, once it may."""

    def __init__(self) -> None:
        self.may_answer = False
        self.asked: set[bytes] = set()

    def check(self, message: ReceivedMessage) -> TransactionState:
        self.asked.add(message.body)
        if not self.may_answer:
            return TransactionState.UNKNOWN
        keep = message.body.startswith(b"keep")
        return TransactionState.COMMIT if keep else TransactionState.ROLLBACK


@pytest.mark.fault("F1")
@pytest.mark.invariant("I9")
@pytest.mark.seed("S2-37")
def test_open_transactions_outlive_their_master(tmp_path: Path) -> None:
    listener = Says()
    with ready(tmp_path, *SOON) as brokers:
        names = brokers.names.address
        brokers.wait(3)
        with penstock.Producer(
            names,
            "shops",
            transaction_listener=listener,
            transaction_topics=[TOPIC],
            durability="replicated",
            heartbeat_interval_ms=1_000,
            route_interval_ms=500,
        ) as producer:
            for number in range(5):
                with producer.transaction(TOPIC, b"done %d" % number):
                    pass
                with pytest.raises(KeyError), producer.transaction(TOPIC, b"undone %d" % number):
                    raise KeyError
                for kind in (b"keep", b"drop"):
                    with producer.transaction(TOPIC, b"%s %d" % (kind, number)) as transaction:
                        transaction.unknown()
            # Some were put back, so that there are copies.
            wait_until(lambda: len(listener.asked) >= 5, "five that were asked about")
            master = brokers.master()
            epoch = brokers.wait(1).master_epoch
            # One more, whose work lasts until another broker is master.
            with producer.transaction(TOPIC, b"spanning") as transaction:
                master.kill()
                brokers.master(epoch=epoch + 1)
            assert transaction.state is TransactionState.COMMIT
            listener.may_answer = True
            wanted = {b"spanning", *(b"done %d" % n for n in range(5)), *(b"keep %d" % n for n in range(5))}
            consume_all(names, wanted)
            time.sleep(1)  # five further rounds
        found = consume_all(names, wanted)
        everything = read_all(names)
        assert set(found) == wanted
        assert sorted(everything) == sorted(wanted), "each of them once"


def read_all(names: str) -> list[bytes]:
    """Everything that is in the topic, for a group that begins anew."""
    found: list[bytes] = []
    with penstock.Consumer(names, "readers", start_from="first") as consumer:
        consumer.subscribe(TOPIC)
        quiet = 0
        while quiet < 4:
            some = [message.body for message in consumer.poll(256, timeout_s=0.5)]
            quiet = 0 if some else quiet + 1
            found += some
    return found
