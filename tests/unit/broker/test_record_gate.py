"""Every request that names a record goes through one gate, and no request handler reads the log past it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.protocol.codes import RequestCode as R
from penstock.security.requests import TABLE
from scripts.raw_reads import raw_reads

ROOT = Path(__file__).resolve().parents[3]
POSITION = "record_gate: the queue entry of the record's own topic and queue points to it"
HALF = "OpenTransactions.record_at: the queue entry, or the table of half messages that are not visible yet"
KEY = "record_gate.by_key: found through the broker's index; topic and key are compared with the record"
ENTRY = "record_gate.property_of_entry: read through the queue's own entry"
POPPED = (
    "PopState and OrderedLots: a pop of this group, topic and queue that handed it out and still waits for it"
)
WHEEL = "DueMessages: topic and id are compared with a message of that second in the wheel"
SEQUENCE = (
    "Idempotence.known: the record has this producer, sequence and body; TIMER_DEL_UNIQKEY: as for recalls"
)
OFFSET = "the queue's own entries: an offset outside of them is answered as such"
TASK = "PushState: the delivery that this connection was sent"
# What names a record, a position, an offset or a handle, and what proves it.
PROOFS = {
    R.VIEW_MESSAGE_BY_ID: POSITION,
    R.CONSUMER_SEND_MSG_BACK: POSITION,
    R.CONSUME_MESSAGE_DIRECTLY: POSITION,
    R.RESUME_CHECK_HALF_MESSAGE: POSITION,
    R.PUBLISH_STAGED: POSITION + ", and has the handle's key and the user's name",
    R.END_TRANSACTION: HALF,
    R.QUERY_MESSAGE: KEY,
    R.QUERY_CONSUME_QUEUE: ENTRY,
    R.SEND_MESSAGE: SEQUENCE,
    R.SEND_MESSAGE_V2: SEQUENCE,
    R.SEND_BATCH_MESSAGE: SEQUENCE,
    R.ACK_MESSAGE: POPPED,
    R.BATCH_ACK_MESSAGE: POPPED,
    R.CHANGE_MESSAGE_INVISIBLETIME: POPPED,
    R.RECALL_MESSAGE: WHEEL,
    R.PULL_MESSAGE: OFFSET,
    R.LITE_PULL_MESSAGE: OFFSET,
    R.PUSH_SUBSCRIBE: OFFSET,
    R.PUSH_RESUME: TASK,
    R.UPDATE_CONSUMER_OFFSET: "ConsumerOffsets: a number, of which no record is read; not of the broker's own groups",
    R.INVOKE_BROKER_TO_RESET_OFFSET: "ConsumerOffsets: as UPDATE_CONSUMER_OFFSET",
    R.CLONE_GROUP_OFFSET: "ConsumerOffsets: as UPDATE_CONSUMER_OFFSET",
}
# Requests that name topics, groups, clients, times or settings, and no record.
NAMES_NO_RECORD = frozenset(
    (
        R.SEND_REPLY_MESSAGE,
        R.SEND_REPLY_MESSAGE_V2,
        R.STAGE_MESSAGES,
        R.STAGED_STATUS,
        R.TELL_HOME,
        R.QUERY_CONSUMER_OFFSET,
        R.HEART_BEAT,
        R.UNREGISTER_CLIENT,
        R.CHECK_CLIENT_CONFIG,
        R.GET_CONSUMER_LIST_BY_GROUP,
        R.LOCK_BATCH_MQ,
        R.UNLOCK_BATCH_MQ,
        R.CLAIM_PARTITION,
        R.REFRESH_PARTITION,
        R.RELEASE_PARTITION,
        R.QUERY_ASSIGNMENT,
        R.PUSH_REGISTER,
        R.PUSH_UNSUBSCRIBE,
        R.PUSH_CLOSE,
        R.PUSH_LIST,
        R.POP_MESSAGE,
        R.PEEK_MESSAGE,
        R.NOTIFICATION,
        R.POLLING_INFO,
        R.GET_ROUTEINFO_BY_TOPIC,
        R.SEARCH_OFFSET_BY_TIMESTAMP,
        R.GET_MAX_OFFSET,
        R.GET_MIN_OFFSET,
        R.GET_EARLIEST_MSG_STORETIME,
        R.GET_TOPIC_CONFIG,
        R.GET_TOPIC_STATS_INFO,
        R.QUERY_TOPIC_CONSUME_BY_WHO,
        R.GET_ALL_TOPIC_CONFIG,
        R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        R.GET_TOPICS_BY_CLUSTER,
        R.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        R.GET_UNIT_TOPIC_LIST,
        R.GET_HAS_UNIT_SUB_TOPIC_LIST,
        R.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        R.GET_SUBSCRIPTIONGROUP_CONFIG,
        R.GET_CONSUMER_CONNECTION_LIST,
        R.GET_CONSUME_STATS,
        R.GET_CONSUMER_RUNNING_INFO,
        R.QUERY_TOPICS_BY_CONSUMER,
        R.QUERY_SUBSCRIPTION_BY_CONSUMER,
        R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        R.QUERY_CONSUME_TIME_SPAN,
        R.QUERY_CORRECTION_OFFSET,
        R.EXPLAIN,
        R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        R.GET_BROKER_CONSUME_STATS,
        R.GET_ALL_CONSUMER_OFFSET,
        R.UPDATE_AND_CREATE_TOPIC,
        R.UPDATE_AND_CREATE_TOPIC_LIST,
        R.UPDATE_AND_CREATE_STATIC_TOPIC,
        R.REGISTER_TOPIC_IN_NAMESRV,
        R.CREATE_ON_DEMAND,
        R.SUBSCRIPTIONS,
        R.DELETE_TOPIC_IN_BROKER,
        R.DELETE_TOPIC_IN_NAMESRV,
        R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        R.DELETE_SUBSCRIPTIONGROUP,
        R.UPDATE_AND_GET_GROUP_FORBIDDEN,
        R.CLIENT_BEAT,
        R.CLIENT_CLOSE,
        R.COORDINATOR_STATUS,
        R.CONTROLLER_GET_METADATA_INFO,
        R.CONTROLLER_GET_REPLICA_INFO,
        R.CONTROLLER_GET_SYNC_STATE_DATA,
        R.GET_CONTROLLER_CONFIG,
        R.GET_BROKER_CLUSTER_INFO,
        R.GET_BROKER_MEMBER_GROUP,
        R.GET_BROKER_CONFIG,
        R.GET_BROKER_RUNTIME_INFO,
        R.GET_BROKER_HA_STATUS,
        R.GET_BROKER_EPOCH_CACHE,
        R.VIEW_BROKER_STATS_DATA,
        R.GET_NAMESRV_CONFIG,
        R.GET_KV_CONFIG,
        R.GET_KVLIST_BY_NAMESPACE,
        R.GET_PRODUCER_CONNECTION_LIST,
        R.GET_ALL_PRODUCER_INFO,
        R.GET_ALL_MESSAGE_REQUEST_MODE,
        R.GET_ALL_DELAY_OFFSET,
        R.GET_TIMER_CHECK_POINT,
        R.GET_TIMER_METRICS,
        R.UPDATE_BROKER_CONFIG,
        R.UPDATE_NAMESRV_CONFIG,
        R.UPDATE_CONTROLLER_CONFIG,
        R.PUT_KV_CONFIG,
        R.DELETE_KV_CONFIG,
        R.WIPE_WRITE_PERM_OF_BROKER,
        R.ADD_WRITE_PERM_OF_BROKER,
        R.TRIGGER_DELETE_FILES,
        R.CLEAN_EXPIRED_CONSUMEQUEUE,
        R.CLEAN_UNUSED_TOPIC,
        R.DELETE_EXPIRED_COMMITLOG,
        R.SET_MESSAGE_REQUEST_MODE,
        R.CONTROLLER_ELECT_MASTER,
        R.CLEAN_BROKER_DATA,
        R.AUTH_CREATE_USER,
        R.AUTH_UPDATE_USER,
        R.AUTH_DELETE_USER,
        R.AUTH_GET_USER,
        R.AUTH_LIST_USERS,
        R.AUTH_CREATE_ACL,
        R.AUTH_UPDATE_ACL,
        R.AUTH_DELETE_ACL,
        R.AUTH_GET_ACL,
        R.AUTH_LIST_ACL,
        R.REGISTER_BROKER,
        R.UNREGISTER_BROKER,
        R.QUERY_DATA_VERSION,
        R.BROKER_HEARTBEAT,
        R.BROKER_BEAT,
        R.CONTROLLER_ALTER_SYNC_STATE_SET,
        R.CONTROLLER_REGISTER_BROKER,
        R.CONTROLLER_GET_NEXT_BROKER_ID,
        R.CONTROLLER_APPLY_BROKER_ID,
        R.CHECK_TRANSACTION_STATE,
        R.NOTIFY_CONSUMER_IDS_CHANGED,
        R.RESET_CONSUMER_CLIENT_OFFSET,
        R.GET_CONSUMER_STATUS_FROM_CLIENT,
        R.PUSH_REPLY_MESSAGE_TO_CLIENT,
        R.PUSH_DELIVER,
        R.PUSH_PING,
        R.NOTIFY_MIN_BROKER_ID_CHANGE,
        R.NOTIFY_BROKER_ROLE_CHANGED,
    )
)


def test_every_request_says_what_proves_the_record_it_names() -> None:
    """A new request needs a line here, and a proof if it names a record."""
    assert set(PROOFS) <= set(TABLE)
    assert not set(PROOFS) & NAMES_NO_RECORD
    assert set(TABLE) - set(PROOFS) == NAMES_NO_RECORD


@pytest.mark.parametrize(
    "source",
    [
        "store.message_at(5)",
        "store.reader.message_at(5)",
        "store.log.slice(5, 9)",
        "read = self._store.log.slice",
        "getattr(store, 'message_at')(5)",
        "from penstock.broker.record_gate import own_message_at",
        "from penstock.broker.record_gate import own_message_at as at",
    ],
)
def test_raw_reads_are_found_in_every_spelling(source: str) -> None:
    names = frozenset(("message_at", "slice", "own_message_at"))
    assert [line for line, _ in raw_reads(source, names)] == [1]
    assert not [*raw_reads("record = gate.at(5, 'hint')\nslice(1, 2)", names)]


def test_planted_raw_read_breaks_the_import_contract(tmp_path: Path) -> None:
    """The contract of .importlinter, over a package with one handler that reads the log at a client's position."""
    room = tmp_path / "penstock" / "broker"
    (room / "processors").mkdir(parents=True)
    contracts = (ROOT / ".importlinter").read_text()
    contract = contracts[contracts.index("[importlinter:contract:raw-reads]") :]
    allowed = contract[contract.index("allowed =") :].split()[2:]
    head = "[importlinter]\nroot_package = penstock\ncontract_types =\n"
    head += "    raw_reads: scripts.raw_reads.RawReadsContract\n\n"
    (tmp_path / ".importlinter").write_text(head + contract)
    for folder in (room.parent, room, room / "processors"):
        (folder / "__init__.py").write_text("")
    for name in allowed:
        (room / f"{name}.py").write_text("def read(log):\n    return log.slice(0, 4)\n")
    handler = room / "processors" / "view.py"

    def check() -> subprocess.CompletedProcess[str]:
        code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
        return subprocess.run(
            [sys.executable, "-c", code, "--no-cache"],
            cwd=tmp_path,
            env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": ""},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    handler.write_text("def view(gate, header):\n    return gate.at(header.offset, 'gone')\n")
    clean = check()
    assert clean.returncode == 0, clean.stdout + clean.stderr
    handler.write_text("def view(store, header):\n    return store.message_at(header.offset)\n")
    planted = check()
    assert planted.returncode == 1
    assert "penstock.broker.processors.view reads the log by position: message_at (l.2)" in " ".join(
        planted.stdout.split()
    )
    # And the list stays short: a module in it that reads nothing raw is one too many.
    handler.write_text("")
    (room / f"{allowed[0]}.py").write_text("")
    assert "is in the list and reads nothing raw" in " ".join(check().stdout.split())
