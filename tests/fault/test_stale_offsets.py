"""A master that slept over its lease tells no offset that its successor has left behind (found by a storm)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import penstock
from penstock.errors import PenstockError
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.headers import QueryConsumerOffsetRequestHeader
from tests.fault.test_failover import GROUP, TOPIC, commit, committed_soon, ready
from tests.support.broker_set import raw
from tests.support.server_processes import ServerProcess
from tests.waiting import wait_until


def ask(node: ServerProcess, told: list[int]) -> None:
    header = QueryConsumerOffsetRequestHeader(consumer_group=GROUP, topic=TOPIC, queue_id=0)
    try:
        answer = raw(node.address, Command(RequestCode.QUERY_CONSUMER_OFFSET, header.encode()), 60_000)
    except PenstockError:
        return
    if answer.code == 0:
        told.append(int(answer.fields["offset"]))


@pytest.mark.fault("F2", "F12")
@pytest.mark.invariant("I1", "I6")
@pytest.mark.timeout(600)
def test_a_master_that_slept_tells_no_offset_of_the_time_before(tmp_path: Path) -> None:
    with ready(tmp_path) as found:
        with penstock.Admin(found.names.address) as admin:
            admin.create_group(GROUP)
        old, epoch = found.leader()
        assert commit(old, 10).code == 0
        assert committed_soon(old) == 10
        old.pause()
        successor = found.master(epoch=epoch + 1)
        assert committed_soon(successor) == 10
        wait_until(lambda: commit(successor, 20).code == 0, "a commit that the successor takes")
        # They wait in the sleeper's sockets, and are the first that it sees when it wakes.
        told: list[int] = []
        threads = [threading.Thread(target=ask, args=(old, told)) for _ in range(8)]
        for thread in threads:
            thread.start()
        threading.Event().wait(1.0)
        old.resume()
        for thread in threads:
            thread.join()
        assert not told
        assert committed_soon(successor) == 20
