"""Reads, streams and writes of a cluster with access control and TLS; no secret in anything that Spark shows."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click.testing
import pytest
from pyspark.errors import PySparkException

from penstock.cli import pipeline_session
from penstock.cli.main import root
from penstock.errors import PenstockError
from penstock.spark.live import close_scans
from penstock.spark.reasons import reason_of
from tests.spark.conftest import BROKERS
from tests.support.guarded_node import SECRETS, GuardedNode, guarded_node

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="no openssl to make certificates with"
)
ROWS = 40


@pytest.fixture(scope="module")
def guarded(tmp_path_factory) -> Iterator[GuardedNode]:
    folder = tmp_path_factory.mktemp("guarded")
    BROKERS.append(str(folder))
    with guarded_node(folder) as node:
        for name, queues in (("in-1", 2), ("out-1", 2), ("out-2", 2), ("out-3", 2)):
            node.admin.create_topic(name, queues)
        node.send("in-1", [b"%d" % number for number in range(ROWS)])
        yield node
    close_scans()


def refused(action) -> str:
    with pytest.raises((PySparkException, PenstockError)) as caught:
        action()
    assert not any(secret in str(caught.value) for secret in (*SECRETS.values(), "wrong-secret-e2"))
    return reason_of(caught.value)


def everything_about(frame) -> str:
    execution = frame._jdf.queryExecution()
    return "\n".join(
        [
            execution.toString(),
            execution.logical().toString(),
            execution.logical().prettyJson(),
            execution.analyzed().toString(),
            *(
                frame._sc._jvm.PythonSQLUtils.explainString(execution, mode)
                for mode in ("extended", "formatted", "cost", "codegen")
            ),
        ]
    )


def command_lines() -> str:
    """What `ps` shows of every process of this machine: the JVM and the Python workers among them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.append((process / "cmdline").read_text(errors="replace").replace("\0", " "))
        except OSError:
            continue  # it has ended meanwhile
    return "\n".join(found)


def files_below(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.abuse("A11")
def test_a_batch_and_a_stream_sign_and_show_no_secret(spark, guarded, tmp_path, capfd):
    spark.conf.set("spark.sql.codegen.wholeStage", "true")  # explain shows the generated code, too
    options = guarded.options("spark", topic="in-1")
    frame = spark.read.format("penstock").options(**options).load()
    assert frame.count() == ROWS
    running = command_lines()
    assert "org.apache.spark" in running
    shown = everything_about(frame) + running
    assert "RelationV2" in shown
    texts = ", ".join(f"{name} '{text}'" for name, text in options.items())
    view = spark.sql(f"explain extended create temporary view v using penstock options ({texts})").first()[0]
    assert view.count("*(redacted)") == 2 * view.count("nameserver -> ") > 0
    shown += view
    stream = spark.readStream.format("penstock").options(**options, group="spark").load()
    shown += everything_about(stream)
    query = (
        stream.select("body")
        .writeStream.format("penstock")
        .options(**guarded.options("writer", topic="out-1"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    query.explain(True)
    assert sorted(map(int, guarded.stored("out-1"))) == list(range(ROWS))
    assert sum(item.lag for item in guarded.admin.describe_group("spark").progress) == 0
    kept = files_below(tmp_path / "checkpoint")
    assert b"in-1/test-broker/0" in kept
    shown += f"{query.lastProgress.json}{query.lastProgress}{capfd.readouterr()}{query.status}"
    for secret in SECRETS.values():
        assert secret not in shown
        assert secret.encode() not in kept


def test_keys_from_a_file_and_a_batch_write_by_who_may_only_write(spark, guarded):
    options = guarded.options("writer", topic="out-2")
    del options["accessKey"], options["secretKey"]
    options["credentialsFile"] = str(guarded.keys_file("writer"))
    frame = spark.range(ROWS).selectExpr("cast(id as string) as body")
    for _ in range(2):
        frame.write.format("penstock").mode("append").options(**options, writeId="once").save()
    assert sorted(map(int, guarded.stored("out-2"))) == list(range(ROWS))
    options = guarded.options("writer", topic="out-3", delivery="at-least-once")
    frame.write.format("penstock").mode("append").options(**options).save()
    assert sorted(map(int, guarded.stored("out-3"))) == list(range(ROWS))


@pytest.mark.abuse("A9")
def test_a_refusal_is_told_by_whoever_meets_it_first(spark, guarded, tmp_path):
    """What else is refused, and how: tests/unit/spark/test_access.py."""
    wrong = guarded.options("spark", "wrong-secret-e2", topic="out-1")
    frame = spark.range(1).selectExpr("cast(id as string) as body")
    stream = spark.readStream.format("penstock").options(**wrong).load().writeStream.format("noop")
    query = stream.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    for action in (
        query.awaitTermination,
        lambda: spark.read.format("penstock").options(**wrong).load().count(),
        lambda: frame.write.format("penstock").mode("append").options(**wrong).save(),
    ):
        told = refused(action)
        assert "the signature of 'spark' is not valid: no such user, or another secret key" in told
        assert "accessKey and secretKey (--access-key, --secret-file)" in told


@pytest.mark.abuse("A11")
def test_commands_take_keys_and_print_no_secret(spark, guarded, monkeypatch, tmp_path, tmp_path_factory):
    @contextmanager
    def session(app, master, conf, log=None):
        try:
            yield spark
        except PySparkException as error:
            raise pipeline_session.told(error, None) from error

    monkeypatch.setattr(pipeline_session, "spark_session", session)
    guarded.admin.create_topic("out-again", 2)
    said = []

    def command(*arguments: object, user: str = "admin", secret: str = "", code: int = 0) -> str:
        flags = ["--nameserver", guarded.address, "--tls-trusted", guarded.certificate, "--access-key", user]
        file = tmp_path_factory.mktemp("keys") / "secret"
        file.write_text(secret or SECRETS[user])
        flags += ["--secret-file", str(file)]
        line = [*map(str, arguments), *flags]
        done = click.testing.CliRunner().invoke(root, line, prog_name="penstock")
        said.append(done.output + done.stderr)
        assert done.exit_code == code, (arguments, done.output, done.stderr, done.exception)
        return done.stdout if code == 0 else done.output + done.stderr

    archive, file = tmp_path / "archive", tmp_path / "p.toml"
    done = command("pipeline", "archive", "--topic", "in-1", "--to", archive, "--once", "--json")
    assert json.loads(done.splitlines()[-1])["rows"] == ROWS
    query = "select count(*) as n from `in-1`"
    assert json.loads(command("sql", query, "--archive", archive, "--json")) == {"n": ROWS}
    done = command(
        *("pipeline", "replay", f"archive:{archive}", "--to", "out-again", "--json"),
        *("--checkpoint", tmp_path / "replay"),
    )
    assert json.loads(done.splitlines()[-1])["verified"]["rows"] == ROWS
    file.write_text('[sources.orders]\ntopic = "in-1"\n[sinks.out]\nfrom = "orders"\npath = "rows"\n')
    command("pipeline", "stream", "validate", file, "--no-spark")
    command("pipeline", "stream", "run", file, "--once", "--json")
    status = json.loads(command("pipeline", "stream", "status", file, "--json"))
    assert (status["trouble"], status["sinks"][0]["lag"]) == ("", 0)
    for refusal in (
        command("sql", secret="wrong-secret-e2", code=2),
        command(
            "pipeline", "archive", "--topic", "in-1", "--to", tmp_path / "none", "--once", user="idle", code=2
        ),
    ):
        assert "--secret-file" in refusal
    assert "starts again" not in said[-1], "waiting mends no key"
    for secret in (*SECRETS.values(), "wrong-secret-e2"):
        assert not any(secret in text for text in said)
        assert secret.encode() not in files_below(tmp_path)
