"""What every command shows on a terminal of 80 columns, against running servers: see stored_screens.py."""

from __future__ import annotations

import json
import shlex
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from penstock import Consumer, Producer
from penstock.testing.reserved_port import ReservedPort
from tests.support.broker_set import QUICK_BROKER, QUICK_COORDINATOR, BrokerSet
from tests.support.certificates import make_certificate
from tests.support.cluster_commands import Commands
from tests.support.dead_letters import kill_all
from tests.support.guarded import USERS
from tests.support.sample_stores import log_file, overwrite, write_store
from tests.support.server_processes import ServerProcess, broker, name_server, options
from tests.unit.cli.stored_screens import FOLDER, Screens
from tests.unit.cli.terminals import CTRL_C, END_OF_INPUT, terminal
from tests.unit.cli.test_help import HELP
from tests.waiting import wait_until

WIDTHS = pytest.mark.parametrize("columns", [80, pytest.param(120, marks=pytest.mark.long(only=True))])
# A master that a busy machine stops for a while is not replaced: the screens show its first epoch.
NO_ELECTION = options("coordinator", master_lease_ms=5_000, broker_silent_ms=5_000)
LONG_NAME = "invoices-of-all-customers-in-europe-and-overseas-for-the-yearly-report"


def node(folder: Path) -> ServerProcess:
    """A name server, a broker and a coordinator in one process."""
    return ServerProcess(
        *("up", folder, "--nameserver-port", "0", "--coordinator-port", "0"),
        *options("store", delay_levels=" ".join(["0s"] * 18), segment_size_bytes=4 << 20),
    )


@contextmanager
def ordered_set(folder: Path) -> Iterator[BrokerSet]:
    """Three brokers that joined one after the other, so that the first one is master."""
    names = name_server(folder / "nameserver")
    coordinator = ServerProcess("coordinator", folder / "coordinator", *QUICK_COORDINATOR, *NO_ELECTION)
    joining = ("--name", "set-a", *options("broker", coordinators=coordinator.address), *QUICK_BROKER)
    brokers = [broker(folder / f"broker-{n}", names.address, *joining, flush="async") for n in (1, 2, 3)]
    with ExitStack() as stack:
        for server in (names, coordinator, *brokers):
            stack.callback(server.put_down)
        names.start()
        coordinator.start()
        found = BrokerSet(names, coordinator, brokers)
        for number, one in enumerate(brokers, 1):
            one.start()
            found.wait(number)
        yield found


@contextmanager
def member(nameserver: str, line: str, shown: str) -> Iterator[None]:
    """A `consume --follow` in a terminal of its own, once it has shown something."""
    with terminal(*shlex.split(line), environment={"PENSTOCK_NAMESERVER": nameserver}) as running:
        running.wait_shown(shown)
        yield


def topics_of(group: str, address: str) -> set[str]:
    """The topics whose queues `group describe` shows for a group with members."""
    found = Commands(address).json("group", "describe", group)
    return {queue["topic"] for queue in found["queues"]} if found["online"] else set()


def subscriptions(address: str) -> int:
    """To how many queues the clients that brokers push to have subscribed."""
    clients = [one for each in Commands(address).json("push", "list").values() for one in each["clients"]]
    return sum(len(client["subscriptions"]) for client in clients)


@WIDTHS
def test_commands_that_ask_a_cluster(tmp_path: Path, columns: int) -> None:
    server = node(tmp_path / "node")
    server.launch()
    with put_down_at_the_end(server):
        facts = server.wait_ready()
        address = facts["nameserver"]
        screens = Screens("cluster", tmp_path, address, columns)
        show = screens.show
        # -- an empty cluster
        show("status")
        show("topic list")
        show("topic list --details")
        show("group list")
        show("dlq list")
        show("push list")
        show("message waiting")
        show("topic describe orders")
        show("consume orders")
        # -- topics and messages
        show("topic create orders --queues 3")
        show("topic create orders --queues 4")
        show("topic create orders --queues 4 --update")
        show("topic create orders --queues 3 --update")
        show("topic create 'my orders'")
        show(f"topic create {LONG_NAME} --json")
        show(
            "produce orders --tag new --key k1 --property shop=7 --queue-key a",
            piped="first\n\nsecond\nthird\n",
        )
        show("produce orders --queue-key a", typed=f"typed\n{END_OF_INPUT}", until="Ctrl-D")
        show("produce orders --json --queue-key a", piped="ordered\n")
        sent = json.loads(
            Commands(address).ok(
                "produce", "orders", "--key", "k2", "--queue-key", "a", "--json", text="fourth\n"
            )
        )
        screens.names["id"] = sent["message_id"]
        screens.names["offset_id"] = sent["offset_message_id"]
        Commands(address).ok("produce", "orders", "--by-key", "--key", "user-1", text="blue\nred\n")
        delayed = Commands(address).json_lines(
            "produce", "orders", "--delay", "30m", text="later\nmuch later\n"
        )
        screens.names["handle"] = delayed[0]["recall_handle"]
        show("topic list")
        show("topic list --details")
        show("topic describe orders")
        show("topic describe ordres")
        show("consume orders --max 3")
        show("consume orders --max 1 --json")
        show("message get {id}")
        show("message get {offset_id} --json")
        show("message get --key k1 --topic orders")
        show("message get --key none --topic orders")
        show("message get 0123456789ABCDEF0123456789ABCDEF")
        show("message value orders user-1")
        show("message value orders user-1 --all")
        show("message trace {id}")
        with Producer(address, group="tills", trace=True) as producer:
            screens.names["traced"] = producer.send("orders", b"traced", queue_key="a").msg_id
        wait_until(lambda: Commands(address)("message", "trace", screens.names["traced"]).exit_code == 0)
        show("message trace {traced}")
        wait_until(lambda: Commands(address).json("message", "waiting")["waiting"] == 2)
        show("message waiting")
        show("message recall {handle}")
        # -- groups
        show("consume orders --group billing")
        with member(address, "consume orders --group billing --follow", ""):
            # The broker makes the group's retry topic when it hears of its first member.
            wait_until(lambda: "%RETRY%billing" in topics_of("billing", address))
            show("group list")
            show("group list --details")
            show("group describe billing")
        show("group reset billing --topic orders --to first --yes")
        Commands(address).ok("produce", "orders", "--queue-key", "a", text="fifth\nsixth\n")
        show("group describe billing")
        show("group reset billing --topic orders --to last", typed="n\n", until="[y/N]")
        show("group reset billing --topic orders --to yesterday --yes")
        show("group describe biling")
        show("push list")
        with Consumer(
            address, "screens", delivery="push", listener=lambda message: None, instance_name="display-1"
        ) as pushed:
            pushed.subscribe("orders")
            # The client subscribes to its queues one after the other.
            wait_until(lambda: subscriptions(address) == 5)
            show("push list")
            show("push resume --group screens")
        show("push resume --group nobody")
        kill_all(address, 9, group="shipping", topic="parcels")
        show("dlq list")
        show("dlq show shipping --key k3")
        show("dlq redrive shipping")
        show("dlq redrive shipping --all --dry-run")
        show("dlq redrive shipping --key k3")
        show("dlq export shipping dead.jsonl")
        show("topic delete parcels", typed="n\n", until="[y/N]")
        show("topic delete parcels --yes")
        show("status")
        show("status --json")
        show("set list", variables={"PENSTOCK_COORDINATOR": facts["coordinator"]})
        show("sql")
    screens.compare()


@WIDTHS
def test_commands_that_ask_a_broker_set(tmp_path: Path, columns: int) -> None:
    with ordered_set(tmp_path / "set") as found:
        coordinator = found.coordinator.address
        screens = Screens("broker-set", tmp_path, found.names.address, columns)
        asked = {"PENSTOCK_COORDINATOR": coordinator}
        where = ("--coordinator", coordinator)

        def show(line: str, **more: Any) -> None:
            screens.show(line, variables=asked, **more)

        run = Commands(found.names.address)
        wait_until(lambda: len(run.json("status")["brokers"]) == 3)
        run.ok("topic", "create", "orders")
        run.ok("produce", "orders", text="one\ntwo\n")
        with Consumer(
            found.names.address,
            "billing",
            balance="coordinator",
            coordinators=coordinator,
            instance_name="till-1",
        ) as consumer:
            consumer.subscribe("orders")
            consumer.wait_assigned()
            # The broker set reports the retry topic a while after it has created it.
            wait_until(
                lambda: (
                    [bool(one["owner"]) for one in run.json("explain", "group", "billing", *where)["queues"]]
                    == [True] * 5
                )
            )
            show("explain group billing")
            show("explain topic orders")
        show("explain group nobody")
        show("status")
        show("set list")
        show("set describe set-a")
        show("set describe set-b")
        show("set elect set-a")
        found.brokers[2].kill()
        wait_until(lambda: run("status").exit_code == 1)
        wait_until(lambda: run.json("set", "describe", "set-a", *where)["syncStateSet"] == [1, 2])
        wait_until(lambda: not run.json("set", "describe", "set-a", *where)["members"]["3"]["isAlive"])
        show("status")
        show("set list")
        show("set describe set-a")
        show("set clean set-a --broker 1 --yes")
        show("set clean set-a", typed="n\n", until="[y/N]")
        found.kill_all()
        wait_until(lambda: all(one["error"] for one in json.loads(run("status", "--json").stdout)["brokers"]))
        # -- all brokers are dead
        show("status")
        show("topic list")
        show("topic list --details")
        show("topic create parcels")
        show("topic describe orders")
        show("topic delete orders --yes")
        show("produce orders", piped="three\n")
        show("consume orders")
        show("message get 7F0000010000A6F50000000000001054")
        show("message get --key k1 --topic orders")
        show("message waiting")
        show("group list")
        show("group describe billing")
        show("group reset billing --topic orders --to first --yes")
        show("dlq list")
        show("push list")
        show("sql")
        found.coordinator.kill()
        show("set list")
        # An election is no reason to warn.
        assert "is master" not in found.coordinator.complaints() + found.brokers[0].complaints()
    screens.compare()


@WIDTHS
def test_wrong_addresses_and_servers(tmp_path: Path, columns: int) -> None:
    """Ports where no server or another kind of server listens, TLS with an unknown certificate and against plaintext,
    wrong secrets."""
    certificate, _ = make_certificate(tmp_path)
    with ExitStack() as stack:
        free = stack.enter_context(ReservedPort())
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        web = stack.enter_context(web_server())
        plain = node(tmp_path / "plain")
        stack.callback(plain.put_down)
        plaintext = ServerProcess("nameserver", tmp_path / "plaintext", *options("tls", mode="disabled"))
        stack.callback(plaintext.put_down)
        guarded = tmp_path / "guarded"
        (guarded / "data").mkdir(parents=True)
        (guarded / "data" / "access.toml").write_text(USERS)
        (guarded / "secret").write_text("wrong\n")
        guard = ServerProcess(
            *("up", guarded, "--nameserver-port", "0"),
            *options("access", enabled=True),
            *options(
                "tls",
                mode="enforcing",
                certificate=certificate,
                key=tmp_path / "key.pem",
                trusted=certificate,
            ),
        )
        stack.callback(guard.put_down)
        for server in (plain, plaintext, guard):
            server.launch()
        facts = plain.wait_ready()
        screens = Screens("wrong-servers", tmp_path, facts["nameserver"], columns)
        screens.names.update(
            free=f"127.0.0.1:{free.number}",
            silent=f"127.0.0.1:{silent.getsockname()[1]}",
            web=f"127.0.0.1:{web}",
            broker=facts["broker"],
            coordinator=facts["coordinator"],
            guarded=guard.wait_ready()["nameserver"],
            plaintext=plaintext.address,
        )
        plaintext.wait_ready()
        show = screens.show
        for line in (
            "status",
            "topic list",
            "topic create orders",
            "group list",
            "consume orders",
            "message waiting",
            "dlq list",
            "dlq show billing",
            "push list",
            "sql",
        ):
            show(f"{line} --nameserver {{free}}")
        show("produce orders --nameserver {free}", piped="one\n")
        show("set list --coordinator {free}")
        show("explain group billing --coordinator {free}")
        show("status --nameserver {silent} --timeout 300")
        show("produce orders --nameserver {silent} --timeout 300", piped="one\n")
        show("set list --coordinator {silent} --timeout 300")
        show("status --nameserver {web} --timeout 300")
        show("topic list --nameserver {web} --timeout 300")
        show("produce orders --nameserver {web} --timeout 300", piped="one\n")
        show("set list --coordinator {web} --timeout 300")
        show("status --nameserver {broker}")
        show("topic list --nameserver {broker}")
        show("produce orders --nameserver {broker}", piped="one\n")
        show("topic list --nameserver {coordinator}")
        show("set list --coordinator {broker}")
        show("explain group billing --coordinator {broker}")
        show("status --nameserver {free};{broker}")
        show("status --nameserver localhost")
        show("status --nameserver nowhere.invalid:9876")
        show("status --tls")
        show("topic list --tls")
        show("produce orders --tls", piped="one\n")
        show("status --nameserver {plaintext} --tls")
        show("topic list --nameserver {plaintext} --tls")
        show("produce orders --nameserver {plaintext} --tls", piped="one\n")
        show("status --nameserver {guarded}")
        show("topic list --nameserver {guarded}")
        show("produce orders --nameserver {guarded}", piped="one\n")
        show("topic list --nameserver {guarded} --tls")
        trusting = "--nameserver {guarded} --tls-trusted certificate.pem"
        show(f"topic list {trusting}")
        show(f"status {trusting}")
        show(f"topic list {trusting} --access-key admin")
        show(f"topic list {trusting} --access-key admin --secret-file guarded/nothing")
        show(f"topic list {trusting} --access-key admin --secret-file guarded/secret")
        show(f"status {trusting} --access-key admin --secret-file guarded/secret")
        show(f"topic list {trusting} --access-key nobody --secret-file guarded/secret")
        show("topic list --nameserver {guarded} --tls-trusted nothing.pem")
        show("topic list --nameserver {guarded} --tls-trusted guarded/secret")
    screens.compare()


@contextmanager
def web_server() -> Iterator[int]:
    """A server of HTTP: its port."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@WIDTHS
def test_commands_that_work_on_files(tmp_path: Path, columns: int) -> None:
    screens = Screens("files", tmp_path, "127.0.0.1:1", columns)
    show = screens.show
    write_store(tmp_path / "store")
    damaged = write_store(tmp_path / "damaged")
    overwrite(log_file(damaged), 5_100, b"damage")
    show("store verify store")
    show("store stats store")
    show("store stats store --queues --exact")
    show("store dump store --max 2")
    show("store dump store --topic orders --queue 1 --max 2")
    show("store dump store --max 1 --json")
    show("store verify damaged")
    show("store dump damaged --from 4000 --max 6")
    show("store verify nothing")
    show("store verify guide.txt")
    (tmp_path / "empty").mkdir()
    show("store verify empty")
    show("store stats empty")
    show("store dump empty")
    show("store dump store --queue 1")
    show("store dump store --topic nothing")
    show("acl list")
    show("acl add admin --role admin --users access.toml")
    show(
        "acl add billing --role producer --role consumer --topic orders-* --group billing --users access.toml"
        " --secret-stdin",
        piped="secret-of-billing\n",
    )
    show("acl add billing --role boss --users access.toml")
    show("acl add billing --topic orders --users access.toml")
    show("acl list --users access.toml")
    show("acl explain billing Pub Topic:orders-2026 --users access.toml")
    show("acl explain billing Pub Topic:invoices --users access.toml")
    show("acl explain nobody Pub Topic:invoices --users access.toml")
    show("acl explain billing Write invoices --users access.toml")
    show("acl remove billing --users access.toml")
    show("acl remove billing --users access.toml")
    show("group export-offsets store --zookeeper 127.0.0.1:1")
    show("group import-offsets nothing --zookeeper 127.0.0.1:1")
    show("completion tcsh")
    show("--version")
    screens.compare()


@WIDTHS
def test_wrong_calls(tmp_path: Path, columns: int) -> None:
    """Every group and command called wrongly: nothing is asked of a server."""
    screens = Screens("wrong-calls", tmp_path, "127.0.0.1:1", columns)
    for line in WRONG_CALLS:
        screens.show(line, piped="")
    screens.compare()


@WIDTHS
def test_servers_in_a_terminal(tmp_path: Path, columns: int) -> None:
    screens = Screens("servers", tmp_path, "127.0.0.1:1", columns)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        screens.names["taken"] = str(taken.getsockname()[1])
        # Not at the port of a name server that somebody else runs on this machine.
        screens.show("up --data one --port {taken}", variables={"PENSTOCK_NAMESERVER_PORT": "0"})
        for line in (
            "up --data two --host 0.0.0.0",
            "up --data two --set broker.nothing=1",
            "up --data two --set store.flush_mode=never",
            "up --data two --port http",
            "up --config nothing.toml",
            "coordinator --data two --metadata redis:1",
            "nameserver --port {taken}",
        ):
            screens.show(line)
    for line, ready in (
        ("up --data up --port 0 --nameserver-port 0", "is ready"),
        ("up --data upc --port 0 --nameserver-port 0 --coordinator-port 0", "is ready"),
        ("nameserver --port 0 --data names", "is ready"),
        ("broker --port 0 --data broker --nameserver 127.0.0.1:1", "is the server running there?"),
        ("coordinator --port 0 --data coordinator", "is ready"),
    ):
        screens.show(line, until=ready, typed=CTRL_C)
    screens.compare()


WRONG_CALLS = """
statsu
topic
topic creat
topic create
topic create a b
topic create orders --queus 4
topic create orders --queues four
topic create orders --queues 0
topic create orders --queues 99999999
topic create orders --permission all
topic create orders --queues
topic create orders --shrink
topic delete
topic describe
topic list orders
produce
produce orders --batch 10 --delay 5s
produce orders --delay 5s --deliver-at 2030-01-01T00:00
produce orders --delay 5
produce orders --property x
produce orders --durability disk
produce orders --by-key
produce orders --deliver-at tomorrow
produce orders --batch 0
produce orders --by-key --queue-key k
consume
consume orders --from yesterday
consume orders --max 0
consume orders --sql 'price >'
consume orders --tag a --sql 'price > 5'
consume orders --group 'my group'
consume orders --key k --tag a
message
message get
message get ABC --key k
message get --key k
message get ABC
message value orders
message trace
message recall
message recall ABC
group
group describe
group reset billing
group reset billing --topic orders
group reset --to first
dlq
dlq show
dlq redrive
dlq redrive billing
dlq redrive billing --all --rate 0
dlq export billing
dlq export billing x.csv --format csv
dlq show billing --since tomorrow
push
push resume
set
set describe
set elect set-a --broker first
set clean set-a
acl
acl add
acl explain billing
explain
explain group
store
store verify
store verify . --segment-size big
store dump . --max x
status now
status --timeout 0
status --timeout soon
status --nameserver
status --nameserver ''
status --access-key admin --secret-key x --secret-file y
completion ksh
demo --nothing
up --queues 4
broker orders
sql --csv --json 'select 1'
sql 'select 1' --archive-only
sql 'select 1' --limit 0
sql 'select 1' --as-of tomorrow
pipeline
pipeline archve
pipeline archive --nothing
pipeline audit --nothing
pipeline compact --nothing
pipeline prepare --nothing
pipeline replay --nothing
pipeline stream
pipeline stream run --nothing
pipeline stream status --nothing
pipeline stream validate --nothing
""".splitlines()


@contextmanager
def put_down_at_the_end(server: ServerProcess) -> Iterator[None]:
    try:
        yield
    finally:
        server.put_down()


@pytest.mark.java
@pytest.mark.long(only=True)
def test_sql_on_spark(tmp_path: Path) -> None:
    server = node(tmp_path / "node")
    server.launch()
    with put_down_at_the_end(server):
        address = server.wait_ready()["nameserver"]
        screens = Screens("sql", tmp_path, address)
        Commands(address).ok("topic", "create", "orders")
        Commands(address).ok("produce", "orders", "--queue-key", "a", "--key", "k1", text="one\ntwo words\n")
        screens.show("sql 'select * from orders order by queue_offset'")
        screens.show("sql 'select queue_offset, message_id, body_text from orders order by queue_offset'")
    screens.compare()


def test_every_command_has_a_screen() -> None:
    """But `demo`, which takes minutes and has tests of its own; Spark's are there with their refusals at least."""
    shown = [
        line.partition("penstock ")[2]
        for path in FOLDER.glob("*.txt")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("$ ")
    ]
    leaves = [path.removeprefix("penstock ") for path in HELP if not any(f"{path} " in one for one in HELP)]
    assert [name for name in leaves if not any(f"{line} ".startswith(f"{name} ") for line in shown)] == []
