"""RocketMQ's mqadmin at Penstock: every command does its work, and prints what it prints at RocketMQ.

As in the cross-check, what it printed at RocketMQ is kept in the cache, and each difference is a row of a table.
"""

from __future__ import annotations

import hashlib
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.interop.java_release import CACHE_DIR
from tests.interop.wire import crosscheck, mqadmin
from tests.interop.wire.conftest import Drivers
from tests.interop.wire.crosscheck import Transcript
from tests.interop.wire.differences import judge, read_rows
from tests.interop.wire.mqadmin import MqAdmin, Printed
from tests.interop.wire.peer import Peer, Server, bodies

TOPIC = "admin-topic"
GROUP = "admin-group"


def _kept() -> Path:
    sources = Path(__file__).read_bytes() + Path(str(mqadmin.__file__)).read_bytes()
    return CACHE_DIR / f"mqadmin-{hashlib.sha256(sources).hexdigest()[:16]}.json"


# Once, so that a file edited meanwhile does not part the two halves of a run.
_KEPT = _kept()


def _session(admin: MqAdmin, peer: Peer) -> Transcript:
    """Commands in an order in which each finds what it needs; what a command must have done is checked on the way."""
    transcript: Transcript = {}
    server = peer.server

    def note(step: str, printed: Printed, form: str = "flat") -> None:
        transcript[step] = getattr(printed, form)()

    create = ["updateTopic", "-c", "DefaultCluster", "-t", TOPIC, "-r", "1", "-w", "1"]
    created = admin.run(*create)
    assert f"create topic to {server.broker} success" in created.output
    note("updateTopic", created)
    sent = admin.run("sendMessage", "-t", TOPIC, "-p", "hello", "-k", "key1", "-c", "tagA")
    assert "SEND_OK" in sent.output
    note("sendMessage", sent)
    (result,) = peer.send(TOPIC, [{"body": "second", "keys": "key1"}])
    consumer = peer.push(TOPIC, group=GROUP)
    assert bodies(peer.received(consumer, 2)) == ["hello", "second"]
    peer.close(consumer)  # Its offsets are committed, nobody pulls any more.

    questions = {
        "clusterList": ("flat", ["clusterList"]),
        "clusterList -m": ("flat", ["clusterList", "-m"]),
        "topicList": ("sorted", ["topicList"]),
        "topicStatus": ("flat", ["topicStatus", "-t", TOPIC]),
        "topicStatus of an absent topic": ("flat", ["topicStatus", "-t", "none"]),
        "topicRoute": ("flat", ["topicRoute", "-t", TOPIC]),
        "consumerProgress": ("flat", ["consumerProgress", "-g", GROUP]),
        "brokerStatus": ("keyed", ["brokerStatus", "-b", server.broker]),
        "queryMsgById": ("sorted", ["queryMsgById", "-t", TOPIC, "-i", result["offsetMsgId"]]),
        "queryMsgByUniqueKey": ("sorted", ["queryMsgByUniqueKey", "-t", TOPIC, "-i", result["msgId"]]),
        "queryMsgByKey": ("flat", ["queryMsgByKey", "-t", TOPIC, "-k", "key1"]),
        "queryMsgByOffset": (
            "sorted",
            ["queryMsgByOffset", "-t", TOPIC, "-b", "broker-a", "-i", "0", "-o", "0"],
        ),
    }
    with ThreadPoolExecutor(1) as beside:
        process = beside.submit(admin.run_process, "clusterList")
        answers = admin.run_all([words for _, words in questions.values()])
        note("clusterList as a process", process.result())
    by_step = dict(zip(questions, answers, strict=True))
    for step, (form, _) in questions.items():
        note(step, by_step[step], form)
    assert re.search(rf"{TOPIC} +broker-a +0 +2 +2 +0", by_step["consumerProgress"].output)
    assert "Queue Offset:        1" in by_step["queryMsgById"].output

    reset = admin.run("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "2020-01-01#00:00:00:000")
    note("resetOffsetByTime", reset)
    assert bodies(peer.received(peer.push(TOPIC, group=GROUP), 2)) == ["hello", "second"]
    peer.end()

    changes = {
        "updateSubGroup": ["updateSubGroup", "-c", "DefaultCluster", "-g", "admin-made"],
        "updateBrokerConfig": ["updateBrokerConfig", "-b", server.broker, "-k", "traceOn", "-v", "true"],
        "deleteTopic": ["deleteTopic", "-c", "DefaultCluster", "-t", TOPIC],
    }
    for step, printed in zip(changes, admin.run_all(changes.values()), strict=True):
        note(step, printed)
    return transcript


@pytest.mark.feature("mqadmin", "rocketmq-5.3")
def test_mqadmin_prints_the_same_or_it_is_explained(server: Server, drivers: Drivers, tmp_path: Path) -> None:
    with MqAdmin(server, tmp_path) as admin:
        transcript = _session(admin, Peer(drivers.get("java-5.3.3"), server))
    if server.name != "penstock":
        _KEPT.write_text(json.dumps(transcript, indent=1))
        return
    if not _KEPT.exists():
        pytest.skip("mqadmin's output at RocketMQ was not recorded: run the test with both servers")
    found = crosscheck.differences(json.loads(_KEPT.read_text()), transcript)
    problems = judge(found, read_rows("mqadmin output that differs"))
    assert not problems, "\n".join(problems)
