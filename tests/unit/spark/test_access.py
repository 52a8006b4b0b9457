"""Options of access without a JVM: what is accepted, what is hidden, and what a guarded cluster over TLS answers."""

from __future__ import annotations

import pickle  # noqa: TID251 - what Spark does with options
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.client.access import FROM_ENVIRONMENT, Access
from penstock.errors import ClientError, ConnectError, OptionError, RouteNotFoundError
from penstock.spark import sink
from penstock.spark.access_options import NAMES, access_options, take_access
from penstock.spark.batch import LivePartition, LiveReader, snapshot
from penstock.spark.live import close_scans
from penstock.spark.options import ReadOptions
from penstock.spark.pipelines.archive import ArchiveJob
from penstock.spark.pipelines.audit_cluster import cluster_progress, cluster_ranges, target_queues
from penstock.spark.pipelines.audit_sources import parse_source
from penstock.spark.pipelines.latest_by_key import CompactJob
from penstock.spark.pipelines.replay_plan import Wanted
from penstock.spark.pipelines.sql import Places, TopicTables
from penstock.spark.pipelines.stream_file import parse_pipeline
from penstock.spark.schema import Selection
from penstock.spark.sink_options import WriteOptions
from penstock.spark.sink_rows import SinkColumns
from penstock.spark.stream import PenstockStreamReader
from tests.support.guarded_node import SECRETS, GuardedNode, guarded_node
from tests.unit.spark.test_sink_rows import schema_of

ROOT = Path(__file__).parents[3]
LIVE = {"nameserver": "h", "topic": "T"}
ALL = {
    "accessKey": "user",
    "secretKey": "the-secret",
    "securityToken": "the-token",
    "tls": "true",
    "tlsTrusted": "/ca.pem",
    "tlsCertificate": "/me.pem",
    "tlsKey": "/me.key",
}


# -- options -----------------------------------------------------------------------------------------------------


def test_options_become_a_value_and_options_again() -> None:
    found, left = take_access({**ALL, "TOPIC": "T"})
    assert left == {"TOPIC": "T"}
    assert found == Access(
        "user",
        "the-secret",
        "the-token",
        "",
        True,
        tls_trusted="/ca.pem",
        tls_certificate="/me.pem",
        tls_key="/me.key",
    )
    assert access_options(found) == ALL
    assert take_access({name.upper(): text for name, text in ALL.items()})[0] == found
    assert take_access({"topic": "T"})[0] == FROM_ENVIRONMENT
    assert (access_options(FROM_ENVIRONMENT), FROM_ENVIRONMENT.settings()) == ({}, {})
    for parse in (ReadOptions.parse, WriteOptions.parse):
        parsed = parse({**LIVE, **ALL})
        assert parsed.access == found
        assert pickle.loads(pickle.dumps(parsed)) == parsed


def test_files_are_absolute_before_they_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found, _ = take_access({"credentialsFile": "keys.toml", "tlsTrusted": "ca.pem"})
    assert (found.credentials_file, found.tls_trusted) == (
        str(tmp_path / "keys.toml"),
        str(tmp_path / "ca.pem"),
    )
    assert found.with_tls
    assert access_options(Access(credentials_file="keys.toml")) == {
        "credentialsFile": str(tmp_path / "keys.toml")
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accessKey": "user"}, "belong together"),
        ({"secretKey": "the-secret"}, "belong together"),
        ({"accessKey": "user", "secretKey": "the-secret\n2"}, "no line of text"),
        ({"accessKey": "user", "secretKey": " "}, "secretKey is empty"),
        ({**ALL, "credentialsFile": "/keys"}, "a file with keys as well"),
        ({"tlsKey": "/me.key"}, "no certificate"),
        ({"tls": "perhaps"}, "neither true nor false"),
        ({"tls": "false", "tlsTrusted": "/ca.pem"}, "tls is false"),
        ({"secretKay": "the-secret"}, "did you mean secretKey"),
    ],
)
def test_what_is_wrong_is_refused_without_quoting_it(options: dict[str, str], message: str) -> None:
    for parse in (ReadOptions.parse, WriteOptions.parse):
        with pytest.raises(OptionError, match=message) as caught:
            parse({**LIVE, **options})
        assert "the-secret" not in str(caught.value)


def test_a_store_directory_asks_nobody() -> None:
    with pytest.raises(OptionError, match="options of access cannot go with a path"):
        ReadOptions.parse({"path": "/store", "accessKey": "user", "secretKey": "the-secret"})


@pytest.mark.abuse("A11")
def test_no_text_has_the_secret() -> None:
    read, write = ReadOptions.parse({**LIVE, **ALL}), WriteOptions.parse({**LIVE, **ALL})
    text = '[sources.a]\ntopic = "T"\n[sources.a.options]\nsecretKey = "the-secret"\naccessKey = "user"\n'
    file = parse_pipeline(text + '[sinks.b]\nfrom = "a"\ntopic = "U"\nnameserver = "h"\n', nameserver="h")
    assert file.problems == []
    for value in (
        read,
        write,
        read.access,
        file,
        sink.batch_writer({**LIVE, **ALL}, schema_of("body string"), False),
    ):
        assert "the-secret" not in f"{value!r}{value}"
        assert "the-token" not in f"{value!r}{value}"


def test_in_a_pipeline_file_own_keys_win_and_files_are_beside_it() -> None:
    text = (
        '[sources.a]\ntopic = "T"\n[sources.b]\ntopic = "T"\n[sources.b.options]\ncredentialsFile = "keys.toml"\n'
        '[sinks.c]\nfrom = "a"\ntopic = "U"\n'
    )
    file = parse_pipeline(text, Path("/etc/p.toml"), nameserver="h", access=Access("user", "the-secret"))
    assert file.problems == []
    first, second = file.sources
    assert (first.options["accessKey"], first.options["secretKey"]) == ("user", "the-secret")
    assert second.options["credentialsFile"] == "/etc/keys.toml"
    assert "secretKey" not in second.options
    assert file.sinks[0].options["secretKey"] == "the-secret"


def test_the_page_has_every_option() -> None:
    page = (ROOT / "docs/spark/access.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in page] == []


# -- a guarded cluster -------------------------------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[GuardedNode]:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    with guarded_node(tmp_path) as node:
        for name in ("in-1", "out-1"):
            node.admin.create_topic(name, 2)
        node.send("in-1", [b"%d" % number for number in range(20)])
        yield node
        close_scans()


def read(options: dict[str, str]) -> int:
    """As the driver plans and a task reads."""
    parsed = ReadOptions.parse(options)
    reader = LiveReader(parsed, Selection(("body",), frozenset()), snapshot(parsed))
    partitions = [part for part in reader.partitions() if isinstance(part, LivePartition)]
    return sum(batch.num_rows for part in partitions for batch in reader.read(part))


def stream(options: dict[str, str]) -> int:
    reader = PenstockStreamReader(ReadOptions.parse(options), Selection(("body",), frozenset()))
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        parts = reader.partitions(start, end)
        return sum(batch.num_rows for part in parts for batch in reader.read(part))
    finally:
        reader.stop()


def write(options: dict[str, str]) -> int:
    """As a task stages and the driver publishes."""
    parsed = WriteOptions.parse({**options, "writeId": "w"})
    columns = SinkColumns(schema_of("body string"), parsed.topic)
    rows = pa.RecordBatch.from_pydict({"body": pa.array(["a", "b", "c"])})
    written = sink.write_rows(parsed, columns, "write:w", 0, iter([rows]))
    sink.publish(parsed, 0, [written])
    return written.rows


def test_reads_streams_and_writes_need_no_more_than_their_topic(guarded: GuardedNode) -> None:
    assert read(guarded.options("spark", topic="in-1")) == 20
    assert stream(guarded.options("spark", topic="in-1")) == 20
    for _ in range(2):
        assert write(guarded.options("writer", topic="out-1")) == 3
    assert sorted(guarded.stored("out-1")) == [b"a", b"b", b"c"]


def test_keys_from_a_file_and_from_the_environment(
    guarded: GuardedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"nameserver": guarded.address, "topic": "in-1", "tlsTrusted": guarded.certificate}
    assert read({**options, "credentialsFile": str(guarded.keys_file("spark"))}) == 20
    monkeypatch.setenv("PENSTOCK_CREDENTIALS", str(guarded.keys_file("spark")))
    assert stream(options) == 20
    # What is said wins over the environment.
    with pytest.raises(ClientError, match="user idle has no permission"):
        read(guarded.options("idle", topic="in-1"))


@pytest.mark.abuse("A9")
def test_a_refusal_says_why_and_where_keys_come_from(guarded: GuardedNode) -> None:
    for action in (read, stream, write):
        with pytest.raises(ClientError, match="the signature of 'spark' is not valid") as caught:
            action(guarded.options("spark", "wrong-secret-e2", topic="in-1"))
        assert "accessKey and secretKey (--access-key, --secret-file)" in str(caught.value)
        assert "wrong-secret-e2" not in str(caught.value)
    unsigned = {"nameserver": guarded.address, "topic": "in-1", "tlsTrusted": guarded.certificate}
    for action in (read, stream, write):
        with pytest.raises(ClientError, match="refused: the request is not signed"):
            action(unsigned)
    for user, topic in (("idle", "in-1"), ("writer", "in-1"), ("writer", "no-such-topic")):
        with pytest.raises(ClientError, match=f"user {user} has no permission for"):
            write(guarded.options(user, topic=topic))


def test_a_topic_that_is_not_there_is_no_refusal(guarded: GuardedNode) -> None:
    """Names that look like it are for those who may list topics."""
    with pytest.raises(RouteNotFoundError, match="there is no topic 'in-2'; create it first"):
        read(guarded.options("spark", topic="in-2"))
    with pytest.raises(RouteNotFoundError, match="there is no topic 'in-2', did you mean in-1"):
        read(guarded.options("admin", topic="in-2"))


def test_a_row_of_another_topic_is_refused_with_the_topic(guarded: GuardedNode) -> None:
    """With a column for topics nobody knows beforehand which; finding a home among all brokers is for admins."""
    options = WriteOptions.parse(guarded.options("admin"))
    columns = SinkColumns(schema_of("topic string, body string"), "")
    rows: dict[str, Any] = {"topic": pa.array(["out-1", "in-1"]), "body": pa.array(["x", "y"])}
    written = sink.write_rows(options, columns, "write:x", 0, iter([pa.RecordBatch.from_pydict(rows)]))
    assert written.rows == 2
    with pytest.raises(ClientError, match=r"user spark has no permission for Get or List on Cluster"):
        sink.write_rows(
            WriteOptions.parse(guarded.options("spark")),
            columns,
            "write:y",
            0,
            iter([pa.RecordBatch.from_pydict(rows)]),
        )


def test_what_pipelines_ask_beside_spark_is_signed_too(guarded: GuardedNode, tmp_path: Path) -> None:
    access = Access("admin", SECRETS["admin"], tls_trusted=guarded.certificate)
    source = parse_source("log:in-1", guarded.address, access=access)
    ranges = cluster_ranges(source)
    assert sum(end - first for first, end in ranges.values()) == 20
    assert cluster_progress(source, ["in-1"])[0] == ()
    assert target_queues(guarded.address, "in-1", access) == {"test-broker": [0, 1]}
    tables = TopicTables(None, Places(guarded.address, access=access))
    assert {info.topic: info.live for info in tables.info()}["in-1"] == 20
    for job in (
        ArchiveJob(str(tmp_path), ("in-1",), nameserver=guarded.address, access=access),
        CompactJob("in-1", str(tmp_path), nameserver=guarded.address, access=access),
    ):
        assert ReadOptions.parse(job.source()).access == access
    with pytest.raises(ClientError, match="user idle has no permission"):
        cluster_ranges(replace(source, access=replace(access, access_key="idle", secret_key=SECRETS["idle"])))
    # A checkpoint of a replay knows nothing of it.
    wanted = Wanted(source, "out-1", guarded.address, access=access)
    assert SECRETS["admin"] not in f"{wanted}{wanted.to_json()}{source.to_json()}{source.label}"
    assert wanted == replace(wanted, access=FROM_ENVIRONMENT)


@pytest.mark.abuse("A24")
def test_files_that_are_not_there_and_certificates_that_nobody_trusts(
    guarded: GuardedNode, tmp_path: Path
) -> None:
    options = {"nameserver": guarded.address, "topic": "in-1", "tlsTrusted": guarded.certificate}
    away = str(tmp_path / "away.toml")
    for action in (read, stream, write):
        with pytest.raises(
            OptionError, match=r"away.toml cannot be read on this machine: No such file"
        ) as caught:
            action({**options, "credentialsFile": away})
        assert "on each machine" in str(caught.value)
    system = {**guarded.options("spark", topic="in-1"), "tls": "true", "retryMs": "100"}
    del system["tlsTrusted"]
    for action in (read, write):
        with pytest.raises(ConnectError, match="certificate verify failed"):
            action(system)
        with pytest.raises(ConnectError, match="no name server answers"):
            action({**system, "tls": "false"})
    assert SECRETS["spark"] not in str(caught.value)
