"""Idempotent sends when brokers die: what was stored and not answered is stored once, whoever is asked again."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from pathlib import Path

import pytest

import penstock
from penstock.errors import PenstockError
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command, encode_frame
from penstock.protocol.headers import SendMessageRequestHeader
from tests.fault.test_failover import TOPIC, ready
from tests.fault.test_transaction_failover import read_all
from tests.support.broker_set import raw
from tests.support.cutting_proxy import CuttingProxy
from tests.support.server_processes import broker, name_server, wait_known
from tests.waiting import DEADLINE_S, wait_until


def send(sequence: int, body: bytes, queue: int = 0) -> Command:
    header = SendMessageRequestHeader(
        producer_group="g",
        topic=TOPIC,
        queue_id=queue,
        born_timestamp=1,
        properties=f"UNIQ_KEY\x01id{sequence}\x02",
    )
    fields = {**header.encode(), "penstockProducer": "p", "penstockSequence": str(sequence)}
    return Command(RequestCode.SEND_MESSAGE_V2, fields, body)


def place(answer: Command) -> tuple[str, ...]:
    """What every answer to the same send must say; the address in an id is the answering broker's."""
    assert answer.code == 0, answer.remark
    return answer.fields["queueOffset"], answer.fields["msgId"][-16:], answer.fields["transactionId"]


def stored(address: str, queue: int = 0) -> int:
    answer = raw(address, Command(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": str(queue)}))
    return int(answer.fields["offset"])


@pytest.mark.feature("idempotent-sends", "own")
@pytest.mark.fault("F1")
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_broker_that_is_killed_between_store_and_answer_knows_the_message(
    tmp_path: Path, flush: str
) -> None:
    with name_server(tmp_path / "names") as names, broker(tmp_path / "b", names.address, flush=flush) as node:
        first = place(raw(node.address, send(0, b"0")))
        with socket.create_connection(("127.0.0.1", node.port), 10) as unanswered:
            for number in range(1, 6):
                unanswered.sendall(encode_frame(send(number, b"%d" % number)))
            wait_until(lambda: stored(node.address) >= 6, "six that are stored")
            node.kill()
        node.start()
        answers = [raw(node.address, send(number, b"%d" % number)) for number in range(6)]
        assert [answer.fields["penstockRepeated"] for answer in answers] == ["true"] * 6
        assert [place(answer)[0] for answer in answers] == [str(number) for number in range(6)]
        assert place(answers[0]) == first
        assert stored(node.address) == 6
        assert raw(node.address, send(6, b"6")).fields["penstockRepeated"] == "false"


@pytest.mark.fault("F1")
@pytest.mark.fault("F3")
def test_a_producer_whose_answers_are_lost_asks_the_broker_that_comes_back(tmp_path: Path) -> None:
    """Requests arrive, answers do not; then the broker is killed. The program sends each message once."""
    with (
        CuttingProxy() as proxy,
        name_server(tmp_path / "names") as names,
        broker(
            *(tmp_path / "b", names.address),
            *("--set", f"broker.advertised_address={proxy.address}"),
        ) as node,
    ):
        proxy.forward_to(node.address)
        wait_known(names.address)
        with penstock.Producer(names.address, idempotent=True, send_timeout_ms=1_000, retries=20) as producer:
            first = producer.send(TOPIC, b"first", queue_key="k")
            queue = first.queue.queue_id
            proxy.deafen()
            futures = [producer.send_async(TOPIC, b"%d" % n, queue=first.queue) for n in range(3)]
            batch = producer.send_batch_async([penstock.Message.of(TOPIC, b"b%d" % n) for n in range(3)])
            wait_until(lambda: stored(node.address, queue) >= 2, "one that is stored and not answered")
            node.kill()
            node.start()
            results = [future.result(DEADLINE_S) for future in futures]
            assert results[0].is_repeated, "its answer was lost, and it was stored"
            assert [result.queue_offset for result in results] == sorted(
                {result.queue_offset for result in results}
            )
            assert len(batch.result(DEADLINE_S)) == 3
        assert sum(stored(node.address, number) for number in range(4)) == 1 + 3 + 3, (
            "every one, and none twice"
        )


class Flood:
    """Many messages of one idempotent producer under way at once, each of them sent once by the program."""

    def __init__(self, names: str) -> None:
        self.acknowledged: list[bytes] = []
        self.repeated = 0
        self.failures: list[PenstockError] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(names,))

    def _run(self, names: str) -> None:
        number = 0
        with penstock.Producer(
            names, idempotent=True, retries=10, send_timeout_ms=3_000, route_interval_ms=500
        ) as producer:
            while not self._stopping.is_set():
                bodies = [b"%06d" % n for n in range(number, number + 16)]
                number += 16
                futures = [(body, producer.send_async(TOPIC, body)) for body in bodies]
                for body, future in futures:
                    try:
                        self.repeated += future.result(DEADLINE_S).is_repeated
                    except PenstockError as error:
                        self.failures.append(error)
                    else:
                        self.acknowledged.append(body)

    def wait_for_more(self, count: int = 50) -> None:
        goal = len(self.acknowledged) + count
        wait_until(
            lambda: len(self.acknowledged) >= goal, lambda: f"{count} acknowledged: {self.failures[-2:]}"
        )

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()


@pytest.mark.feature("idempotent-sends", "own")
@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I6")
def test_the_next_master_knows_what_the_last_one_stored(tmp_path: Path) -> None:
    with ready(tmp_path) as brokers:
        names = brokers.names.address
        brokers.wait(3)
        master = brokers.master()
        first = {n: place(raw(master.address, send(n, b"raw %d" % n))) for n in range(20)}
        with Flood(names) as flood:
            flood.wait_for_more()
            epoch = brokers.wait(1).master_epoch
            master.kill()
            following = brokers.master(epoch=epoch + 1)
            flood.wait_for_more()
        for number, known in first.items():
            answer = raw(following.address, send(number, b"raw %d" % number))
            assert answer.fields["penstockRepeated"] == "true"
            assert place(answer) == known
        found = Counter(body for body in read_all(names))
        assert not [body for body, count in found.items() if count > 1], "each at most once"
        missing = [body for body in flood.acknowledged if body not in found]
        assert not missing, "every acknowledged one at least once"
        assert {b"raw %d" % number for number in first} <= set(found)
        unknown = len(flood.failures)
        print(f"{len(flood.acknowledged)} acknowledged, {flood.repeated} of them repeated, {unknown} failed")
        assert unknown == 0, "a retry waits for the next master"
