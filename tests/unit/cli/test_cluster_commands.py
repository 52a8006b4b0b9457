"""Topics, groups, messages and status over the command line, against a real broker."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.testing import broker
from tests.support.cluster_commands import Commands, lines


@pytest.fixture
def address() -> Iterator[str]:
    with broker() as nameserver:
        yield nameserver


@pytest.fixture
def run(address: str) -> Commands:
    return Commands(address)


# -- topics ------------------------------------------------------------------------------------------------------


def test_a_topic_from_beginning_to_end(run: Commands) -> None:
    assert run.ok("topic", "create", "life", "--queues", 3) == "topic life: 3 queues on test-broker\n"
    assert "life" in run.ok("topic", "list").splitlines()
    run.ok("produce", "life", text=lines(range(10)))
    described = run.json("topic", "describe", "life")
    assert described["messages"] == 10
    assert [queue["queue"] for queue in described["queues"]] == [0, 1, 2]
    assert described["brokers"][0]["permission"] == "read-write"
    shown = run.ok("topic", "describe", "life")
    assert "10 messages" in shown
    assert len(re.findall(r"^test-broker +\d", shown, re.M)) == 3
    assert "life" in run.ok("topic", "list", "--details")
    assert run.json("topic", "delete", "life", "--yes") == {"deleted": "life", "messages": 10}
    assert "life" not in run.json("topic", "list")
    assert "create it first" in run.refused("topic", "describe", "life")


def test_an_empty_list_says_what_to_do(run: Commands) -> None:
    """Also with --details, which showed a table of no rows."""
    for group, words in (
        ("topic", "`penstock topic create NAME` makes one"),
        ("group", "its first consumer"),
    ):
        for flags in ((), ("--details",)):
            done = run(group, "list", *flags)
            assert (done.exit_code, done.stdout, words in done.stderr) == (0, "", True), done.output


def test_creating_is_no_advice_to_those_who_delete_reset_or_look_up(run: Commands) -> None:
    for command in (
        ("topic", "delete", "nothing", "--yes"),
        ("group", "reset", "g", "--topic", "nothing", "--to", "first", "--yes"),
        ("message", "get", "--key", "k", "--topic", "nothing"),
        ("message", "value", "nothing", "k"),
    ):
        told = run.refused(*command)
        assert "topic 'nothing' has no route; `penstock topic list` shows the topics" in told
    run.ok("topic", "create", "nothings")
    assert "did you mean nothings?" in run.refused("topic", "delete", "nothing", "--yes")


def test_dead_letters_of_a_misspelt_group(run: Commands, address: str, tmp_path: Path) -> None:
    """No dead letters is good news, and must not be told of a group that is not there."""
    with penstock.Admin(address) as admin:
        admin.create_group("billing")
    export = ("export", "biling", tmp_path / "dead.jsonl")
    for command in (("list", "biling"), ("show", "biling"), ("redrive", "biling", "--all"), export):
        done = run("dlq", *command)
        assert (done.exit_code, "in " in done.stdout) == (1, False), done.output
        assert "there is no group biling; did you mean billing?" in done.stderr
    assert not list(tmp_path.iterdir())
    assert run("dlq", "show", "billing").exit_code == 1
    path = tmp_path / "nowhere" / "dead.jsonl"
    assert f"there is no directory {path.parent}; make it" in run.refused("dlq", "export", "billing", path)


def test_an_existing_topic_is_changed_only_if_told(run: Commands) -> None:
    run.ok("topic", "create", "fixed", "--queues", 2)
    assert "add --update" in run.refused("topic", "create", "fixed", "--queues", 4)
    assert len(run.json("topic", "describe", "fixed")["queues"]) == 2
    changed = run.json("topic", "create", "fixed", "--queues", 4, "--permission", "read", "--update")
    assert len(changed["queues"]) == 4
    assert changed["brokers"][0]["permission"] == "read"
    assert run("produce", "fixed", text="x\n").exit_code == 2


def test_deleting_is_asked_for(run: Commands) -> None:
    run.ok("topic", "create", "kept")
    assert "Add --yes" in run.refused("topic", "delete", "kept")
    assert "kept" in run.json("topic", "list")


def test_internal_topics_are_shown_when_asked_for(run: Commands) -> None:
    assert "TBW102" not in run.json("topic", "list")
    assert "TBW102" in run.json("topic", "list", "--internal")
    assert any(topic["topic"] == "TBW102" for topic in run.json("topic", "list", "--internal", "--details"))


@pytest.mark.parametrize("name", ["no spaces", "a/b", "x" * 200, "\x1b[2J"])
def test_names_that_no_topic_may_have_are_refused(run: Commands, name: str) -> None:
    complaint = run.refused("topic", "create", name)
    assert "\x1b" not in complaint


# -- produce and messages ----------------------------------------------------------------------------------------


def test_lines_become_messages_with_tag_key_and_properties(run: Commands) -> None:
    told = run.json_lines(
        *("produce", "parts", "--tag", "new", "--key", "a b", "--property", "shop=7", "--property", "x=1=2"),
        text="first\n\nsecond\r\nthird",
    )
    assert [result["status"] for result in told] == ["SEND_OK"] * 3
    found = run.json("message", "get", told[1]["message_id"])
    assert (found["body"], found["tag"], found["keys"]) == ("second", "new", ["a", "b"])
    assert (found["properties"]["shop"], found["properties"]["x"]) == ("7", "1=2")
    assert (found["queue"], found["offset"]) == (told[1]["queue"], told[1]["offset"])
    by_place = run.json("message", "get", told[1]["offset_message_id"])
    assert by_place["body"] == "second"
    by_key = run.json_lines("message", "get", "--key", "b", "--topic", "parts")
    assert sorted(message["body"] for message in by_key) == ["first", "second", "third"]


@pytest.mark.parametrize("batch", [[], ["--batch", 7]])
def test_many_lines_arrive_once_each(run: Commands, batch: list[object]) -> None:
    topic = f"many{len(batch)}"
    said = run("produce", topic, *batch, text=lines(range(1000)))
    assert said.exit_code == 0
    assert said.stdout.startswith(f"1,000 sent to {topic} in ")
    assert run.json("topic", "describe", topic)["messages"] == 1000


@pytest.mark.parametrize("batch", [[], ["--batch", 7]])
def test_idempotent_lines_carry_numbers_of_one_producer(run: Commands, batch: list[object]) -> None:
    topic = f"once{len(batch)}"
    told = run.json_lines("produce", topic, "--idempotent", *batch, text=lines(range(20)))
    found = [run.json("message", "get", one["message_id"])["properties"] for one in (told[0], told[19])]
    assert len({properties["PENSTOCK_PRODUCER"] for properties in found}) == 1
    assert [int(properties["PENSTOCK_SEQUENCE"]) for properties in found] == [0, 19]


def test_empty_lines_are_counted_and_bytes_stay_bytes(run: Commands) -> None:
    result = run("produce", "bytes", text=b"\xff\xfe\n\n\n\x00ab\n")
    assert "2 sent to bytes" in result.stdout
    assert "2 empty lines left out" in result.stdout
    (told,) = run.json_lines("produce", "bytes", text=b"\xff\x00")
    found = run.json("message", "get", told["message_id"], "--topic", "bytes")
    assert (found["body"], found["body_encoding"]) == ("/wA=", "base64")


def test_equal_queue_keys_keep_the_order(run: Commands) -> None:
    told = run.json_lines("produce", "ordered", "--queue-key", "k", text=lines(range(200)))
    assert len({result["queue"] for result in told}) == 1
    assert [result["offset"] for result in told] == list(range(200))


def test_a_refused_line_ends_the_reading_and_the_rest_is_counted(run: Commands) -> None:
    result = run("produce", "limited", text=b"fine\n" + b"x" * (5 << 20) + b"\nnever\n")
    assert result.exit_code == 2
    assert "1 sent to limited" in result.stdout
    assert result.stderr.startswith("penstock: ")
    assert run.json("topic", "describe", "limited")["messages"] == 1


def test_a_message_is_shown_with_everything(run: Commands) -> None:
    (told,) = run.json_lines("produce", "shown", "--tag", "blue", text="two words")
    shown = run.ok("message", "get", told["message_id"])
    for part in (told["message_id"], told["offset_message_id"], "shown/", "blue", "two words", "9 bytes"):
        assert part in shown
    rows = run.ok("produce", "shown", "--key", "k1", text="row") and run.ok(
        "message", "get", "--key", "k1", "--topic", "shown"
    )
    assert "row" in rows


@pytest.mark.abuse("A25")
def test_what_a_sender_chose_cannot_act_on_a_terminal(run: Commands) -> None:
    nasty = "\x1b]0;owned\x07\x1b[2J\u202egnp.exe [red]x[/red]"
    told = run.json_lines("produce", "nasty", "--tag", nasty, "--key", "k", text=nasty)
    for shown in (
        run.ok("message", "get", told[0]["message_id"]),
        run.ok("message", "get", "--key", "k", "--topic", "nasty"),
        json.dumps(run.json("message", "get", told[0]["message_id"])),
    ):
        assert all(char.isprintable() or char == "\n" for char in shown)


def test_a_message_that_is_not_there_is_one(run: Commands) -> None:
    run.ok("produce", "there", text="x")
    for arguments in (
        ("message", "get", "7F000001000078BF000000000000FFFF"),
        ("message", "get", "AC11000100002A9F0000000000000ABC", "--topic", "there"),
        ("message", "get", "--key", "absent", "--topic", "there"),
    ):
        result = run(*arguments)
        assert result.exit_code == 1, result.output
    assert run("message", "get", "nonsense").exit_code == 1


def test_a_lookup_needs_one_way_to_look(run: Commands) -> None:
    assert "one of them" in run.refused("message", "get")
    assert "one of them" in run.refused("message", "get", "ID", "--key", "k")
    assert "--key needs --topic" in run.refused("message", "get", "--key", "k")


# -- status ------------------------------------------------------------------------------------------------------


def test_status_shows_who_is_there(run: Commands, address: str) -> None:
    found = run.json("status")
    assert found["healthy"] is True
    assert found["name_servers"] == [{"address": address, "answers": True}]
    (only,) = found["brokers"]
    assert (only["name"], only["id"], only["error"]) == ("test-broker", 0, "")
    shown = run.ok("status")
    assert f"name server {address}  answers" in shown
    assert "test-broker" in shown
    assert "all answer" in shown


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_tables_fit_the_terminal(run: Commands, columns: int) -> None:
    run.ok("topic", "create", "a-topic-with-quite-a-long-name-that-nobody-would-type", "--update")
    for arguments in (
        ("status",),
        ("topic", "list", "--details", "--internal"),
        ("topic", "describe", "a-topic-with-quite-a-long-name-that-nobody-would-type"),
    ):
        result = run(*arguments, columns=columns)
        assert result.exit_code == 0
        assert max(map(len, result.stdout.splitlines())) <= columns


def test_a_dead_name_server_among_living_ones_is_told(run: Commands, address: str) -> None:
    result = Commands(f"{address};127.0.0.1:1")("status", "--json", "--timeout", 2000)
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert [server["answers"] for server in found["name_servers"]] == [True, False]
    assert found["healthy"] is False


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("topic", "list"),
        ("topic", "create", "t"),
        ("produce", "t"),
        ("message", "get", "ABC"),
        ("group", "list"),
    ],
)
def test_an_unreachable_cluster_is_told_with_what_to_do(arguments: tuple[str, ...]) -> None:
    result = Commands("127.0.0.1:1")(*arguments, text="line\n")
    assert result.exit_code == 2
    assert "127.0.0.1:1" in result.stderr
    assert "penstock up" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_wrong_address_is_told(run: Commands) -> None:
    assert "write it as" in Commands("no port:here").refused("status")


# -- groups ------------------------------------------------------------------------------------------------------


def test_an_unknown_group_is_told(run: Commands) -> None:
    assert "there is no group nobody" in run.refused("group", "describe", "nobody")
    run.ok("topic", "create", "grouped")
    complaint = run.refused("group", "reset", "nobody", "--topic", "grouped", "--to", "first", "--yes")
    assert "nobody" in complaint
    assert "neither first nor last" in run.refused(
        *("group", "reset", "g", "--topic", "grouped", "--to", "tomorrow", "--yes")
    )


# -- traces ------------------------------------------------------------------------------------------------------


def test_the_life_of_a_message_is_shown(run: Commands, address: str) -> None:
    with penstock.Producer(address, group="traced", trace=True) as producer:
        result = producer.send("T", b"hello", keys="\x1b[31mk")
    with penstock.Consumer(address, group="taker", start_from="first", trace=True) as consumer:
        consumer.subscribe("T")
        assert next(iter(consumer)).msg_id == result.msg_id
    records = run.json("message", "trace", result.msg_id)
    assert [record["kind"] for record in records] == ["Pub", "SubBefore", "SubAfter"]
    assert [record["group"] for record in records] == ["traced", "taker", "taker"]
    shown = run.ok("message", "trace", result.msg_id)
    assert "traced" in shown
    assert "try 1" in shown
    assert "\x1b" not in shown
    missing = run("message", "trace", "nobody")
    assert missing.exit_code == 1
    assert "no traces" in missing.stdout
