"""`penstock store`: outcomes, exit codes, escaping, and that nothing is changed or thrown at the user."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock.cli.main import root
from penstock.message import Message
from penstock.store import MessageStore
from tests.support.sample_stores import (
    SMALL,
    body_at,
    flip,
    index_files,
    like_java,
    log_file,
    overwrite,
    queue_file,
    record_positions,
    sample_message,
    tree_state,
    write_store,
)

ROOT = Path(__file__).resolve().parents[3]
NASTY = "\x1b]0;owned\x07\x1b[2J\r\x9b31m \u202egnp.exe [red]x[/red] :smile:"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_store(tmp_path / "store")


def run(*arguments: object, columns: int = 120) -> Result:
    runner = CliRunner(env={"COLUMNS": str(columns), "TERM": "dumb"})
    return runner.invoke(root, [str(argument) for argument in arguments])


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "penstock.cli.main", *(str(argument) for argument in arguments)]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "COLUMNS": "120", **more}


def is_safe(text: str) -> bool:
    """Nothing that a terminal would act on or hide."""
    return all(char.isprintable() or char == "\n" for char in text)


# -- verify ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 120])
def test_verify_of_a_sound_store(path: Path, columns: int) -> None:
    result = run("store", "verify", path, columns=columns)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout.rstrip().endswith("sound")
    for shown in (
        "400 records",
        "400 entries",
        "800 entries",
        "3 segments of 64 KiB",
        "MB/s",
        "closed cleanly",
    ):
        assert shown in result.stdout
    assert max(len(line) for line in result.stdout.splitlines() if "/" not in line) <= columns


def test_verify_as_json_is_one_document(path: Path) -> None:
    result = run("store", "verify", path, "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 0
    assert report["sound"] is True
    assert report["issues"] == []
    assert report["log"]["records"] == 400
    assert report["sizes"]["segment_size_bytes"] == 65536
    assert report["bytes_per_second"] > 0


@pytest.mark.fault("F7")
@pytest.mark.invariant("I12")
@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    ("what", "shown"),
    [
        ("body", "checksum mismatch in"),
        ("header", "unknown magic number"),
        ("queue entry", "orders/0 offset 5 leads to"),
        ("index slot", "slot "),
        ("index entry", "entry 33: "),
    ],
)
def test_verify_shows_a_flipped_bit_with_its_place(path: Path, what: str, shown: str, columns: int) -> None:
    position = record_positions(path)[30]
    index = index_files(path)[0]
    slot = next(at for at in range(40, 2040, 4) if index.read_bytes()[at : at + 4] != bytes(4))
    file, at, told = {
        "body": (log_file(path), body_at(path, position), f"{position:,}"),
        "header": (log_file(path), position + 4, f"{position:,}"),
        "queue entry": (queue_file(path), 106, "byte 100"),
        "index slot": (index, slot + 3, f"byte {slot:,}"),
        "index entry": (index, 2040 + 33 * 20 + 2, f"byte {2040 + 33 * 20:,}"),
    }[what]
    flip(file, at)
    result = run("store", "verify", path, columns=columns)
    assert result.exit_code == 1
    flat = " ".join(result.stdout.split())
    assert shown in flat
    assert told in flat
    assert str(file.relative_to(path)) in flat.replace(" ", "") or columns == 120
    assert "DAMAGED: 1 damaged place" in flat
    issues = json.loads(run("store", "verify", path, "--json").stdout)["issues"]
    found = [issue for issue in issues if issue["damage"]]
    assert [issue["path"] for issue in found] == [str(file.relative_to(path))]


def test_verify_of_a_torn_store(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", clean=False)
    end = json.loads(run("store", "verify", path, "--json").stdout)["log"]["end"]
    overwrite(log_file(path, end), end % SMALL.segment_size_bytes, b"\x00\x00\x04\x00\xda\xa3\x20\xa7torn")
    result = run("store", "verify", path)
    assert result.exit_code == 0
    assert "torn end of the log" in result.stdout
    assert f"{end:,}" in result.stdout
    assert "not closed cleanly" in result.stdout


def test_verify_of_short_missing_and_stray_files(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", 700)
    with log_file(path, 65536).open("r+b") as file:
        file.truncate(9000)
    (path / "commitlog" / "core.1234").write_bytes(b"x")
    queue_file(path, queue=1).unlink()
    queue_file(path, queue=1, offset=100).unlink()
    queue_file(path, queue=1).parent.rmdir()
    result = run("store", "verify", path)
    assert result.exit_code == 1
    for shown in ("file has 9000 of 65536 bytes", "stray file", "core.1234", "folder is missing: orders/1"):
        assert shown in " ".join(result.stdout.split())


def test_verify_with_given_sizes(path: Path) -> None:
    sizes = ("--segment-size", "64K", "--queue-entries", 100, "--index-slots", 500, "--index-entries", 400)
    assert run("store", "verify", path, *sizes).exit_code == 0
    wrong = run("store", "verify", path, "--index-slots", 400, "--index-entries", 420)
    assert wrong.exit_code == 1  # the same length of file, another shape
    assert run("store", "verify", path, "--queue-entries", 50).exit_code == 1


def test_an_index_of_unknown_sizes_is_said_not_to_be_checked(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", SMALL, background=False) as store:
        store.append(sample_message(0), 0)
    result = run("store", "verify", like_java(tmp_path / "store"))
    assert result.exit_code == 0
    assert "index not checked" in result.stdout


# -- dump --------------------------------------------------------------------------------------------------------


@pytest.mark.seed("S4-5")
def test_dump_as_json_lines_has_everything(path: Path) -> None:
    result = run("store", "dump", path, "--json")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert len(rows) == 400
    assert [row["position"] for row in rows] == record_positions(path)
    row = rows[7]
    message = sample_message(7)
    assert (row["topic"], row["queue"], row["offset"]) == ("%RETRY%group-1", 0, 1)
    assert (row["body"], row["body_encoding"]) == (message.body.decode(), "utf-8")
    assert (row["tag"], row["keys"]) == ("tag3", ["k7", "shared"])
    assert row["properties"] == dict(message.properties)
    assert row["store_time"] == "2023-11-14T22:13:20.000Z"
    assert row["born_host"] == "127.0.0.1:10911"
    assert row["size"] == record_positions(path)[8] - record_positions(path)[7]


@pytest.mark.feature("retained-messages", "fifth-seed")
@pytest.mark.seed("S4-5")
def test_dump_by_topic_queue_offset_and_number(path: Path) -> None:
    def offsets(*options: object) -> list[tuple[int, int]]:
        result = run("store", "dump", path, "--json", *options)
        assert result.exit_code == 0, result.stderr
        return [(row["queue"], row["offset"]) for row in map(json.loads, result.stdout.splitlines())]

    everything = offsets("--topic", "orders")
    assert everything == [(queue, offset) for queue in (0, 1) for offset in range(67)]
    assert offsets("--topic", "orders", "--queue", 1, "--from", 60) == [
        (1, offset) for offset in range(60, 67)
    ]
    assert offsets("--topic", "orders", "--queue", 0, "--from", 5, "--max", 2) == [(0, 5), (0, 6)]
    assert offsets("--topic", "orders", "--from", 65, "--max", 3) == [(0, 65), (0, 66), (1, 65)]
    assert offsets("--topic", "orders", "--from", 1000) == []
    assert offsets("--max", 0) == []
    assert len(offsets("--from", record_positions(path)[390])) == 10


@pytest.mark.parametrize("columns", [80, 120])
def test_dump_as_a_table_fits_the_terminal(path: Path, columns: int) -> None:
    result = run("store", "dump", path, "--topic", "orders", "--max", 250, columns=columns)
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert max(map(len, lines)) == columns
    assert sum(line.startswith("Message") for line in lines) == 1  # one header for all parts of the table
    for shown in (
        "orders/0 @ 66",
        "2023-11-14T22:13:20.000Z",
        "from 127.0.0.1:10911",
        "body 0396",
        "k396 shared",
    ):
        assert shown in result.stdout


def test_dump_without_messages_says_so(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    result = run("store", "dump", tmp_path)
    assert (result.exit_code, result.stdout) == (0, "no messages\n")
    assert run("store", "dump", tmp_path, "--json").stdout == ""


@pytest.mark.invariant("I12")
@pytest.mark.parametrize("options", [(), ("--topic", "orders")])
def test_dump_shows_damage_in_its_place(path: Path, options: tuple[str, ...]) -> None:
    position = record_positions(path)[30]
    flip(log_file(path), body_at(path, position))
    result = run("store", "dump", path, *options)
    assert result.exit_code == 1
    assert "damaged" in result.stdout
    assert f"at {position:,}" in result.stdout
    assert "1 damaged place; see `penstock store verify`" in result.stderr
    rows = [json.loads(line) for line in run("store", "dump", path, "--json", *options).stdout.splitlines()]
    assert [row["position"] for row in rows if row.get("damaged")] == [position]


@pytest.mark.abuse("A21")
@pytest.mark.abuse("A25")
def test_control_characters_never_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL, background=False) as store:
        store.append(Message.of("t", NASTY.encode(), tag=NASTY.replace(" ", "_"), keys=NASTY))
        store.append(Message("t", b"\xff\x00\x1b[31m", {"p\x1b[0m\n": "v\x9b\u2028"}))
    for columns in (80, 120):
        for options in ((), ("--topic", "t")):
            result = run("store", "dump", path, *options, columns=columns)
            assert result.exit_code == 0
            assert is_safe(result.stdout), repr(result.stdout)
            assert "\\x1b" in result.stdout or "base64:" in result.stdout
    output = run("store", "dump", path, "--json").stdout
    assert output.isascii()
    assert is_safe(output)
    first, second = (json.loads(line) for line in output.splitlines())
    assert first["keys"] == NASTY.split(" ")
    assert (second["body"], second["body_encoding"]) == ("/wAbWzMxbQ==", "base64")
    assert second["properties"] == {"p\x1b[0m\n": "v\x9b\u2028"}


@pytest.mark.abuse("A25")
def test_names_of_files_and_topics_are_escaped(path: Path) -> None:
    strange = "x\x1b[31m\ny"
    (path / "commitlog" / strange).write_bytes(b"")
    (path / "consumequeue" / strange / "0").mkdir(parents=True)
    for name in ("verify", "stats"):
        result = run("store", name, path)
        assert is_safe(result.stdout), repr(result.stdout)
    refused = run("store", "dump", path, "--topic", strange + "z")
    assert refused.exit_code == 2
    assert is_safe(refused.stderr)
    assert refused.stderr.count("\n") == 1


# -- stats -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("options", [(), ("--exact",), ("--queues",), ("--exact", "--queues")])
def test_stats_as_tables(path: Path, columns: int, options: tuple[str, ...]) -> None:
    result = run("store", "stats", path, *options, columns=columns)
    assert result.exit_code == 0
    for shown in (
        "messages    400",
        "orders",
        "SCHEDULE_TOPIC_XXXX",
        "800 entries",
        "commitlog",
        "2023-11-14T22:13:20",
    ):
        assert shown in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()[1:]) <= columns


def test_stats_sort_topics_by_their_number_of_messages(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", SMALL, background=False) as store:
        for topic, count in (("few", 2), ("most", 30), ("some", 7)):
            for _ in range(count):
                store.append(Message.of(topic, b"x"))
    lines = run("store", "stats", tmp_path / "store").stdout.splitlines()
    assert [line.split()[0] for line in lines[-3:]] == ["most", "some", "few"]


def test_stats_as_json(path: Path) -> None:
    quick = json.loads(run("store", "stats", path, "--json").stdout)
    exact = json.loads(run("store", "stats", path, "--json", "--exact").stdout)
    assert (quick["messages"], exact["messages"]) == (400, 400)
    assert [queue["messages"] for queue in quick["queues"]] == [
        queue["messages"] for queue in exact["queues"]
    ]
    assert quick["checkpoint"]["physic_timestamp"] == exact["log"]["last_timestamp"]
    assert quick["files"]["commitlog"]["files"] == 3


# -- read-only ---------------------------------------------------------------------------------------------------

EVERY_COMMAND = (
    ("verify",),
    ("verify", "--json"),
    ("dump",),
    ("dump", "--json", "--topic", "orders"),
    ("stats",),
    ("stats", "--exact", "--json"),
)


@pytest.mark.invariant("I12")
@pytest.mark.parametrize("state", ["closed", "crashed", "java", "damaged"])
def test_no_command_changes_the_directory(tmp_path: Path, state: str) -> None:
    path = write_store(tmp_path / "store", clean=state != "crashed")
    if state == "java":
        like_java(path)
    if state == "damaged":
        with log_file(path, 65536).open("r+b") as file:
            file.truncate(5000)
        flip(queue_file(path), 106)
        flip(index_files(path)[0], 2100)
    before = tree_state(path)
    for arguments in EVERY_COMMAND:
        assert run("store", arguments[0], path, *arguments[1:]).exit_code in (0, 1)
    assert tree_state(path) == before


HOLDER = """
import sys
from pathlib import Path
from tests.support.sample_stores import SMALL, sample_message
from penstock.store import MessageStore
store = MessageStore.open(Path(sys.argv[1]), SMALL, background=False)
for number in range(400, 450):
    store.append(sample_message(number), number // 3 % 2)
print("ready", flush=True)
sys.stdin.read()
store.close()
"""


@pytest.fixture
def owner(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that owns the directory and has written to it."""
    arguments = [sys.executable, "-c", HOLDER, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(
        arguments, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, **pipes
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0


def test_a_store_in_use_is_read_beside_its_owner(path: Path, owner: subprocess.Popen[str]) -> None:
    before = tree_state(path)
    report = json.loads(run("store", "verify", path, "--json").stdout)
    assert report["sound"] is True
    assert report["in_use"] is True
    assert report["log"]["records"] == 450
    assert "in use by a broker" in run("store", "stats", path).stdout
    assert len(run("store", "dump", path, "--json", "--topic", "orders").stdout.splitlines()) == 150
    for arguments in EVERY_COMMAND:
        assert run("store", arguments[0], path, *arguments[1:]).exit_code == 0
    assert tree_state(path) == before


# -- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("verify", "{empty}"), "is not a store; name a directory that has a commitlog folder"),
        (("stats", "{empty}"), "is not a store"),
        (("dump", "{empty}"), "is not a store"),
        (("dump", "{empty}", "--topic", "t"), "is not a store"),
        (("verify", "{empty}/nothing"), "does not exist"),
        (("verify", "{store}/lock"), "is a file"),
        (("verify",), "Missing argument 'DIR'"),
        (("verify", "{store}", "--index-slots", "5"), "only one of the two index sizes"),
        (("verify", "{store}", "--index-slots", "0"), "0 is not between 1 and 2147483647"),
        (("verify", "{store}", "--segment-size", "12"), "use at least 4096"),
        (("verify", "{store}", "--segment-size", "3T"), "'3T' is not a size"),
        (("verify", "{store}", "--segment-size", "1G"), "the options say 1073741824"),
        (("verify", "{store}", "--segment-size", "9999G"), "use at most 2 GiB"),
        (("dump", "{store}", "--max", "-1"), "-1 is not between 0 and"),
        (("dump", "{store}", "--from", "99999999999999999999999"), "is not a number"),
        (("dump", "{store}", "--from", "1e3"), "'1e3' is not a number"),
        (("dump", "{store}", "--queue", "1"), "--queue needs --topic"),
        (
            ("dump", "{store}", "--topic", "orders", "--queue", "9"),
            "topic orders has no queue 9; it has 0, 1",
        ),
        (("dump", "{store}", "--topic", "nope"), "the store has no topic 'nope'; it has %RETRY%group-1"),
        (("dump", "{store}", "--nope"), "No such option"),
        (("explode", "{store}"), "No such command 'explode'"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    path: Path, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    (tmp_path / "empty").mkdir()
    filled = [argument.format(store=path, empty=tmp_path / "empty") for argument in arguments]
    result = run("store", *filled)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert says in result.stderr
    assert result.stderr.startswith("penstock: ")
    assert result.stderr.count("\n") == 1


def test_a_file_that_cannot_be_read_is_said_in_one_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, path: Path, **options: bool) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("penstock.runtime.disk.SystemDisk.open", fail)
    result = run("store", "verify", path)
    assert result.exit_code == 2
    assert "Permission denied" in result.stderr
    assert result.stderr.count("\n") == 1


# -- processes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [("--json",), ()])
def test_a_closed_pipe_is_quiet(tmp_path: Path, options: tuple[str, ...]) -> None:
    path = write_store(tmp_path / "store", 1500)  # more than a pipe holds
    arguments = command("store", "dump", path, *options)
    process = subprocess.Popen(arguments, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 141
    assert errors == b""


def wait_until_stuck(process: subprocess.Popen[bytes]) -> None:
    """Until it sleeps in the full pipe: nothing more comes, although there is more to come."""
    assert process.stdout is not None
    deadline, steady, before = time.monotonic() + 60, 0, b""
    while steady < 20:
        assert time.monotonic() < deadline
        assert process.poll() is None, "it ended, so there was too little to say"
        time.sleep(0.01)
        waiting = fcntl.ioctl(process.stdout, termios.FIONREAD, bytes(4))
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        steady = steady + 1 if state == "S" and waiting == before != bytes(4) else 0
        before = waiting


def test_an_interrupt_is_quiet(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", 1500)
    arguments = command("store", "dump", path, "--json")
    process = subprocess.Popen(arguments, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until_stuck(process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip() == b""


def test_no_progress_where_there_is_no_terminal(path: Path) -> None:
    done = subprocess.run(
        command("store", "verify", path), env=environment(), capture_output=True, check=False
    )
    assert done.returncode == 0
    assert done.stderr == b""
    assert b"\x1b" not in done.stdout


def test_progress_is_shown_on_a_terminal_and_keeps_out_of_the_output(path: Path) -> None:
    ours, theirs = os.openpty()
    try:
        done = subprocess.run(
            command("store", "verify", path, "--json"),
            env=environment(TERM="xterm"),
            stdout=subprocess.PIPE,
            stderr=theirs,
            check=False,
        )
        os.close(theirs)
        shown = os.read(ours, 65536)
    finally:
        os.close(ours)
    assert b"Verifying" in shown
    assert json.loads(done.stdout)["sound"] is True
