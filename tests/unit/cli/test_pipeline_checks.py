"""Wrong calls of the Spark commands: found before Spark starts, told in a line, and nothing is left behind."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner, Result

import penstock
from penstock.cli import pipeline_session
from penstock.cli.main import root
from penstock.client.loop_thread import LoopThread
from penstock.testing import broker
from penstock.testing.embedded import EmbeddedBroker
from tests.support.guarded_node import SECRETS, GuardedNode, guarded_node

ROOT = Path(__file__).resolve().parents[3]
FILE = """\
[sources.orders]
topic = "{source}"
[sinks.out]
from = "orders"
topic = "{target}"
"""
# Every job on topics `source` and `target`; DIR is a directory that is not there yet.
JOBS = {
    "archive": "archive --topic {source} --to DIR --once",
    "compact": "compact --topic {source} --to DIR --once",
    "replay": "replay log:{source} --to {target} --checkpoint DIR",
    "audit": "audit log:{source} --out DIR",
    "stream": "stream run FILE --once --checkpoint DIR",
}
Refused = Callable[..., str]


def test_sql_finds_that_nothing_can_be_read_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(app: str, *_: object) -> NoReturn:
        raise SparkStartedError(app)

    monkeypatch.setattr(pipeline_session, "spark_session", start)
    for flags, words in (
        (("--nameserver", "127.0.0.1:1"), "no name server answers (127.0.0.1:1: Connection refused)"),
        (("--archive", tmp_path / "no", "--archive-only"), f"{tmp_path / 'no'}"),
        (("--store", tmp_path / "no"), f"{tmp_path / 'no'}"),
    ):
        done = CliRunner().invoke(root, ["sql", "select count(*) from orders", *map(str, flags)])
        assert (done.exit_code, done.stdout) == (2, ""), (done.output, done.exception)
        assert words in done.stderr


class SparkStartedError(BaseException):
    """Not one that a command would handle."""


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refused:
    """`refused("archive", address, source="ordrs")`: what it said last; it started no Spark and left nothing."""

    def start(app: str, *_: object) -> NoReturn:
        raise SparkStartedError(app)

    monkeypatch.setattr(pipeline_session, "spark_session", start)

    def run(
        line: str, address: str, *flags: object, source: str = "orders", target: str = "copies", code: int = 2
    ) -> str:
        file = tmp_path / "p.toml"
        file.write_text(FILE.format(source=source, target=target))
        words = JOBS.get(line, line).format(source=source, target=target).split()
        places = {"DIR": str(tmp_path / "made"), "FILE": str(file)}
        arguments = [places.get(word, word) for word in words]
        before = sorted(tmp_path.rglob("*"))
        done: Result = CliRunner(env={"PENSTOCK_NAMESERVER": address}).invoke(
            root, ["pipeline", *arguments, *map(str, flags)]
        )
        assert done.exit_code == code, (done.output, done.exception)
        assert done.stdout == "", "standard output is for results"
        assert sorted(tmp_path.rglob("*")) == before
        return done.stderr.splitlines()[-1]

    return run


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    with broker() as address, penstock.Admin(address) as admin:
        for name in ("orders", "copies"):
            admin.create_topic(name, 2)
        yield address


WATCHED = """
import sys
from penstock.cli.main import root
from penstock.cli.pipeline_progress import Progress
say = Progress.say
def watched(progress, text):
    say(progress, text)
    print("pyspark" in sys.modules, flush=True)
    sys.exit()
Progress.say = watched
root.main(sys.argv[1:])
"""


@pytest.mark.parametrize("job", JOBS)
def test_something_is_shown_before_spark_is_imported(job: str, node: str, tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(FILE.format(source="orders", target="copies"))
    words = JOBS[job].format(source="orders", target="copies").replace("FILE", str(file)).split()
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, "pipeline", *words, "--nameserver", node],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("False\n", f"{job}: checking\n")


# -- topics and addresses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", JOBS)
def test_a_topic_that_is_not_there_is_told_with_its_neighbour(job: str, node: str, refused: Refused) -> None:
    said = refused(job, node, source="ordrs")
    assert "'ordrs'" in said
    assert "did you mean orders" in said


@pytest.mark.parametrize("job", ["replay", "stream"])
def test_a_target_that_is_not_there_is_told_with_its_neighbour(job: str, refused: Refused) -> None:
    with broker(auto_create_topics=False) as address, penstock.Admin(address) as admin:
        for name in ("orders", "copies"):
            admin.create_topic(name, 2)
        said = refused(job, address, target="copis")
    assert "there is no topic 'copis' to write to, did you mean copies" in said
    assert job == "replay" or "sinks.out: " in said


@pytest.mark.parametrize("job", JOBS)
def test_a_name_server_that_is_not_there_is_told_by_its_address(job: str, refused: Refused) -> None:
    assert "no name server answers (127.0.0.1:1: Connection refused)" in refused(job, "127.0.0.1:1")


@contextmanager
def silent_port() -> Iterator[str]:
    """Accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.slow
def test_a_port_that_says_nothing_is_given_up(refused: Refused) -> None:
    with silent_port() as address:
        assert f"no name server answers ({address}: no answer in time)" in refused("archive", address)


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A name server that lists a broker at an address where nothing listens."""
    data = tmp_path_factory.mktemp("dead")
    with broker(data) as address, penstock.Admin(address) as admin:
        for name in ("orders", "copies"):
            admin.create_topic(name, 1)
    with broker(data, advertised_address="127.0.0.1:1") as address:
        yield address


@pytest.mark.parametrize("job", JOBS)
def test_a_dead_broker_behind_a_live_name_server_is_told(job: str, dead: str, refused: Refused) -> None:
    assert "127.0.0.1:1" in refused(job, dead)


@pytest.fixture(scope="module")
def empty() -> Iterator[str]:
    """A name server whose last broker is gone."""
    embedded, thread = EmbeddedBroker(), LoopThread("penstock-test-broker")
    try:
        thread.run(embedded.start())
        try:
            assert embedded.broker is not None
            thread.run(embedded.broker.stop())
            yield embedded.address
        finally:
            thread.run(embedded.stop())
    finally:
        thread.stop()


@pytest.mark.parametrize("job", JOBS)
def test_without_brokers_the_advice_is_not_to_create_the_topic(
    job: str, empty: str, refused: Refused
) -> None:
    said = refused(job, empty)
    assert "no broker is registered: start the brokers" in said
    assert "create" not in said


def test_a_job_without_an_end_that_has_run_before_waits_for_brokers(
    node: str, tmp_path: Path, refused: Refused
) -> None:
    (tmp_path / "made" / "_manifest").mkdir(parents=True)
    with pytest.raises(SparkStartedError):
        refused("archive --topic orders --to DIR", "127.0.0.1:1")
    refused("archive", "127.0.0.1:1")


# -- TLS and keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", ["archive", "audit", "stream"])
def test_tls_where_there_is_none_is_told(job: str, node: str, refused: Refused) -> None:
    assert f"{node} speaks no TLS; leave out --tls" in refused(job, node, "--tls")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedNode]:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    with guarded_node(tmp_path_factory.mktemp("guarded")) as made:
        made.admin.create_topic("in-1", 1)
        made.admin.create_topic("out-1", 1)
        yield made


def test_no_tls_where_there_is_nothing_else_is_told(guarded: GuardedNode, refused: Refused) -> None:
    for job in ("archive", "audit", "stream"):
        said = refused(job, guarded.address, source="in-1", target="out-1")
        assert f"{guarded.address} speaks TLS only; add --tls" in said


@pytest.mark.abuse("A11")
def test_a_wrong_secret_and_a_missing_right_are_told(
    guarded: GuardedNode, refused: Refused, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("keys") / "secret"
    for user, secret in (
        ("spark", "wrong-secret-e2"),
        ("writer", SECRETS["writer"]),
        ("idle", SECRETS["idle"]),
    ):
        file.write_text(secret)
        flags = ("--tls-trusted", guarded.certificate, "--access-key", user, "--secret-file", file)
        for job in ("archive", "stream"):
            said = refused(job, guarded.address, *flags, source="in-1", target="out-1")
            assert "refused: " in said
            assert user in said
            assert secret not in said


# -- arguments -----------------------------------------------------------------------------------------------------

WRONG = {
    "archive --topic orders --to DIR --once --every 5s": "--once and --every cannot both be given",
    "archive --topic orders --topic-pattern o.* --to DIR": "--topic and --topic-pattern cannot both be given",
    "archive --store DIR --to DIR --every 5s": "--store and --every cannot both be given",
    "archive --store DIR --to DIR --nameserver 127.0.0.1:1": "--store and --nameserver cannot both be given",
    "archive --to DIR --merge-only --once": "--merge-only and --once cannot both be given",
    "archive --to DIR --once": "give either topics or a pattern",
    "archive --topic orders --to DIR --once --start yesterday": "start is 'yesterday'",
    "archive --topic-pattern o( --to DIR --once": "no regular expression",
    "archive --topic orders --to FILE --once": "is a file",
    "archive --topic orders --to DIR --once --checkpoint FILE": "is a file",
    "archive --store FILE --to DIR": "is not a store",
    "archive --to DIR --merge-only": "is no archive",
    'archive --topic orders --to DIR --once --start {"orders/nobody/0":7}': "orders/nobody/0",
    "compact --topic orders --to DIR --once --every 5s": "--once and --every cannot both be given",
    "compact --topic orders,copies --to DIR --once": "one topic",
    "compact --topic orders --to FILE --once": "is a file",
    "replay log:orders --to copies --from yesterday": "is no time",
    "replay log:orders --to copies --from 1h --until 2h": "the time range is empty",
    "replay archive:DIR --to copies": "is no archive",
    "replay log:orders --to copies --checkpoint FILE": "is a file",
    "audit log:orders --out FILE": "is a file",
    "audit archive:DIR --out DIR": "is no archive",
    "audit log:orders --out DIR --allow nothing": "there is no finding 'nothing'",
    "audit log:orders --out DIR --from 1h --until 2h": "the time range is empty",
    "stream run DIR --once": "there is no file",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_arguments_are_refused_before_spark_starts(line: str, node: str, refused: Refused) -> None:
    protected = line.replace("{", "{{").replace("}", "}}")
    assert WRONG[line] in refused(protected, node)


def test_a_file_with_mistakes_is_refused_before_spark_starts(
    node: str, refused: Refused, tmp_path: Path
) -> None:
    said = refused("stream run FILE --once", node, source="not a topic", code=1)
    assert "sources.orders: invalid topic name 'not a topic'" in said


def test_a_checkpoint_with_another_start_is_refused(node: str, refused: Refused, tmp_path: Path) -> None:
    from penstock.runtime import SystemDisk
    from penstock.spark.pipelines.audit_sources import parse_source
    from penstock.spark.pipelines.replay_plan import Checkpoint, Plan, Wanted

    wanted = Wanted(parse_source("log:orders", node), "copies", node)
    plan = Plan("replay-1", wanted.to_json(), "test-broker", 2, {}, (), {})
    (tmp_path / "made").mkdir()
    Checkpoint(SystemDisk(), tmp_path / "made").begin(plan)
    assert "source.start" in refused("replay", node, "--from", "1h")
