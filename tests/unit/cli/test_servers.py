"""`penstock up`, `nameserver` and `broker` as processes: ready, reachable, configured, stopped, refused."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from penstock.broker.registration import Registration
from penstock.cli.config import Configuration
from penstock.cli.main import root
from penstock.cli.node import Node, NodeOptions
from penstock.client.admin import Admin
from penstock.client.consumer import Consumer
from penstock.client.producer import Producer
from penstock.nameserver import NameServer
from penstock.remoting import RemotingServer
from penstock.store import MessageStore
from tests.disk_limits import NO_DISK_LIMITS
from tests.waiting import PATIENT_SENDS, wait_until

ROOT = Path(__file__).resolve().parents[3]
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_NAMESERVER")}
# The disk of a test machine may be as full as it likes.
ROOMY = [f"--set=store.{name}={percent}" for name, percent in NO_DISK_LIMITS.items()]
SMALL = [*ROOMY, "--set=store.segment_size_bytes=16M", "--set=store.index_slots=10000"]


class Server:
    """A command that runs until it is told to stop."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            _, err = process.communicate(timeout=60)
            raise AssertionError(f"it ended with {process.returncode}: {err}")
        self.ready: dict[str, Any] = json.loads(line) if line.startswith("{") else {"line": line}

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Exit code and what it had to say."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        assert out == ""
        return self.process.returncode, err


@contextmanager
def serving(*arguments: object, environment: dict[str, str] | None = None) -> Iterator[Server]:
    command = [sys.executable, "-m", "penstock.cli.main", *(str(argument) for argument in arguments)]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**CLEAN, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Server(process)
        finally:
            process.kill()
            process.communicate()


@contextmanager
def refusing_address() -> Iterator[str]:
    """An address that refuses connections until a server that is told to listen does: its port is bound, so that
    nobody gets it who asks for any."""
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def refused(*arguments: object) -> str:
    """The complaint of a server that must not start."""
    with mock.patch.dict(os.environ, CLEAN, clear=True):
        done = CliRunner().invoke(root, [str(argument) for argument in arguments])
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    return done.stderr


def failed_start(change: str, *arguments: object) -> str:
    """The log of a server that ends with status 1, in a process that executes `change` before the command."""
    code = f"{change}\nfrom penstock.cli.main import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", code, *(str(argument) for argument in arguments)],
        cwd=ROOT,
        env=CLEAN,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_up_is_ready_serves_and_stops_cleanly(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for round_number in range(2):
        with serving("up", "--json", "--data", data, "--port", 0, "--nameserver-port", 0, *SMALL) as server:
            ready = server.ready
            assert ready["ready"] is True
            assert ready["pid"] == server.process.pid
            assert ready["data"] == str(data)
            address = ready["nameserver"]
            with Producer(address, **PATIENT_SENDS) as producer:
                # At once: the ready line means known to the name server.
                assert producer.send("T", b"one").is_ok
            with Consumer(address, "g", start_from="first") as consumer:
                consumer.subscribe("T")
                (message,) = consumer.poll(32, 60)
                assert (message.body, message.queue_offset >= 0) == (b"one", True)
                consumer.commit()
            with Admin(address) as admin:
                assert admin.describe_topic("T").messages == round_number + 1
                assert admin.describe_group("g").lag == 0
            code, err = server.stop()
            assert (code, err) == (0, "")
    assert not (data / "abort").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_ready_line_names_the_addresses(tmp_path: Path, number: int) -> None:
    arguments = ("--port", 0, "--nameserver-port", 0, "--data", tmp_path / "d")
    with serving("up", *arguments, *SMALL) as server:
        line = server.ready["line"]
        assert line.startswith("penstock up is ready: ")
        addresses = dict(re.findall(r"(name server|broker) (127\.0\.0\.1:\d+)", line))
        with Admin(addresses["name server"]) as admin:
            assert [one.address for one in admin.cluster_status().brokers] == [addresses["broker"]]
        assert server.stop(number) == (0, "")


@pytest.mark.seed("S4-10")
@pytest.mark.seed("S2-29", "S3-70", "S3-84")
@pytest.mark.seed("S2-4")
@pytest.mark.seed("S1-2")
def test_roles_in_processes_of_their_own(tmp_path: Path) -> None:
    with (
        serving("nameserver", "--json", "--port", 0, "--data", tmp_path / "n1") as first,
        serving("nameserver", "--json", "--port", 0, "--data", tmp_path / "n2") as second,
    ):
        addresses = [first.ready["nameserver"], second.ready["nameserver"]]
        broker = serving(
            *("broker", "--json", "--port", 0, "--data", tmp_path / "b", "--name", "broker-x", *SMALL),
            *("--nameserver", ";".join(addresses), "--cluster", "C1"),
        )
        with broker as server:
            assert server.ready["broker_name"] == "broker-x"
            for address in addresses:
                assert wait_for_broker(address) == "broker-x"
            first.stop()
            with Producer(addresses) as producer:
                assert producer.send("T", b"one name server is enough").is_ok
            assert server.stop()[0] == 0
        assert second.stop() == (0, "")


def wait_for_broker(address: str) -> str:
    with Admin(address) as admin:
        wait_until(lambda: admin.cluster_status().brokers, "a broker to register")
        return str(admin.cluster_status().brokers[0].name)


def test_a_broker_without_a_name_server_says_so(tmp_path: Path) -> None:
    with serving("broker", "--json", "--port", 0, "--data", tmp_path / "b", *SMALL) as server:
        code, err = server.stop()
    assert code == 0
    assert "clients cannot find this broker" in err


def test_the_environment_and_files_configure_a_server(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=from-conf\nbrokerClusterName=C\nlistenPort=0\nsendMessageThreadPoolNums=4\n")
    toml = tmp_path / "penstock.toml"
    toml.write_text(
        f"data = '{tmp_path}/data'\n[nameserver]\nport = 0\n[store]\nsegment_size_bytes = '16M'\n"
    )
    environment = {"PENSTOCK_BROKER_CLUSTER_NAME": "from-env", "PENSTOCK_BROKER_PROT": "1"}
    arguments = ("up", "--json", "--config", conf, "--config", toml, *ROOMY)
    with serving(*arguments, environment=environment) as server:
        ready = server.ready
        assert (ready["broker_name"], ready["cluster"]) == ("from-conf", "from-env")
        assert ready["data"] == f"{tmp_path}/data"
        with Producer(ready["nameserver"]) as producer:
            producer.send("T", b"x")
        code, err = server.stop()
    assert code == 0
    assert "sendMessageThreadPoolNums (line 4)" in err
    assert "did you mean PENSTOCK_BROKER_PORT?" in err
    assert all(line.startswith("penstock: ") for line in err.splitlines())
    (segment,) = (tmp_path / "data" / "commitlog").iterdir()
    assert segment.stat().st_size == 16 << 20


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = f"cannot listen on 127.0.0.1:{port}: address already in use; "
        complaint = refused("up", "--nameserver-port", port, "--port", 0, "--data", tmp_path / "d")
        assert words in complaint
        assert complaint.count("\n") == 1
        for mode in ("disabled", "permissive"):
            ports = ("--nameserver-port", 0, "--port", port)
            tls = ("--set", f"tls.mode={mode}")
            assert words in refused("up", *ports, *tls, "--data", tmp_path / "d", *SMALL)


def test_a_directory_in_use_is_told(tmp_path: Path) -> None:
    arguments = ("--port", 0, "--nameserver-port", 0, "--data", tmp_path / "d", *SMALL)
    with serving("up", "--json", *arguments) as server:
        complaint = refused("up", *arguments)
        assert str(tmp_path / "d") in complaint
        assert complaint.count("\n") == 1
        assert server.stop()[0] == 0


@pytest.mark.fault("F1")
def test_a_killed_node_recovers(tmp_path: Path) -> None:
    arguments = ("--port", 0, "--nameserver-port", 0, "--data", tmp_path / "d", *SMALL)
    with serving("up", "--json", "--set=store.flush_mode=sync", *arguments) as server:
        with Producer(server.ready["nameserver"]) as producer:
            sent = [producer.send("T", b"m%d" % number).msg_id for number in range(20)]
        server.process.kill()
        server.process.wait()
    with serving("up", "--json", *arguments) as server:
        with Admin(server.ready["nameserver"]) as admin:
            assert [admin.get_message(msg_id, "T").msg_id for msg_id in sent] == sent
        assert server.stop()[0] == 0


# -- options first, servers last --------------------------------------------------------------------------------


@pytest.mark.seed("S3-84", "S3-85")
def test_a_broker_is_made_of_four_configurations(tmp_path: Path) -> None:
    """Broker, message store, and the network as a server and as a client, out of one file of RocketMQ's."""
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "brokerName=from-conf\nlistenPort=0\nfileReservedTime=48\nserverChannelMaxIdleTimeSeconds=77\n"
    )
    configuration = Configuration(["broker", "remoting", "tls", "store"])
    configuration.add_file(conf, role="broker")
    configuration.add_pairs(["remoting.connect_timeout_ms=1234"])
    options = NodeOptions.of(configuration, ("broker",))
    assert options.nameserver is None
    assert options.broker is not None
    assert (options.broker.broker_name, options.store.file_reserved_hours) == ("from-conf", 48)
    assert (options.remoting.idle_timeout_ms, options.remoting.connect_timeout_ms) == (77_000, 1234)
    data = replace(options, process=replace(options.process, data=str(tmp_path / "d")))

    async def run() -> None:
        node = Node(data)
        await node.start()
        try:
            broker = node.broker
            assert broker is not None
            assert broker.options.broker_name == "from-conf"
            assert broker.store.options.file_reserved_hours == 48
            assert broker.server.options.idle_timeout_ms == 77_000
            assert broker.registration.client.options.connect_timeout_ms == 1234
        finally:
            await node.stop()

    asyncio.run(run())


@pytest.mark.seed("S2-30", "S3-86")
@pytest.mark.parametrize(
    "pair",
    [
        "broker.port=x",
        "store.flush_mode=later",
        "remoting.frame_bytes_max=x",
        "tls.mode=x",
        "tls.mode=enforcing",
    ],
)
def test_nothing_starts_before_every_option_is_known(tmp_path: Path, pair: str) -> None:
    data = tmp_path / "d"
    with socket.create_server(("127.0.0.1", 0)) as name_server:
        name_server.settimeout(0.2)
        host, port = name_server.getsockname()
        arguments = ("--data", data, "--port", 0, "--nameserver", f"{host}:{port}", "--set", pair)
        in_process("broker", *arguments)
        with pytest.raises(TimeoutError):
            name_server.accept()
    assert not data.exists()


@pytest.mark.seed("S3-86")
def test_a_node_starts_name_server_broker_and_registration_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    for kind, method in ((NameServer, "start"), (MessageStore, "open"), (RemotingServer, "start")):
        _note(monkeypatch, order, kind, method)
    monkeypatch.setattr(Registration, "start", _noting(order, "Registration.start", Registration.start))
    configuration = Configuration(["nameserver", "broker", "remoting", "tls", "store"])

    async def run(address: str) -> None:
        port = address.rpartition(":")[2]
        configuration.add_pairs([f"data={tmp_path / 'd'}", "nameserver.port=0", f"broker.port={port}"])
        node = Node(NodeOptions.of(configuration, ("nameserver", "broker")))
        await node.start()
        await node.stop()

    with refusing_address() as address:
        asyncio.run(run(address))
    assert order == [
        "NameServer.start",
        "RemotingServer.start",
        "MessageStore.open",
        "RemotingServer.start",
        "RemotingServer.start",  # at the VIP port
        "Registration.start",
    ]


def _note(monkeypatch: pytest.MonkeyPatch, order: list[str], kind: type, method: str) -> None:
    found = kind.__dict__[method]
    name = f"{kind.__name__}.{method}"
    if isinstance(found, classmethod):
        monkeypatch.setattr(kind, method, classmethod(_noting(order, name, found.__func__)))
    else:
        monkeypatch.setattr(kind, method, _noting(order, name, found))


def _noting(order: list[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def noting(*arguments: Any, **named: Any) -> Any:
        order.append(name)
        return function(*arguments, **named)

    return noting


# -- what is refused before anything starts ----------------------------------------------------------------------


def in_process(*arguments: object) -> str:
    result = CliRunner().invoke(root, [str(argument) for argument in arguments])
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return result.stderr


@pytest.mark.parametrize("command", ["up", "nameserver", "broker"])
@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.77.1", "::"])
def test_nothing_listens_beyond_this_machine_unasked(command: str, host: str) -> None:
    complaint = in_process(command, "--host", host, "--port", 0)
    assert complaint.startswith(f"penstock: --host: {host} can be reached from other machines")
    assert "--listen-anywhere" in complaint


def test_a_file_that_opens_the_server_to_others_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=a\nbindAddress=0.0.0.0\n")
    complaint = in_process("broker", "--config", path)
    assert complaint.startswith(f"penstock: {path}:2 (bindAddress): 0.0.0.0 can be reached")


def test_listening_anywhere_when_told(tmp_path: Path) -> None:
    arguments = ("--port", 0, "--nameserver-port", 0, "--data", tmp_path / "d", *SMALL)
    with serving("up", "--json", "--host", "0.0.0.0", "--listen-anywhere", *arguments) as server:
        port = server.ready["nameserver"].rpartition(":")[2]
        with Producer(f"127.0.0.1:{port}") as producer:
            assert producer.send("T", b"x").is_ok
        assert server.stop()[0] == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ("up", "--set", "broker.prot=1"),
            "--set broker.prot: [broker] has no option 'prot'; did you mean port?",
        ),
        (("up", "--set", "store.flush_mode=later"), "flush_mode is 'later': use async or sync"),
        (("up", "--config", "absent.toml"), "absent.toml: No such file or directory"),
        (("up", "--port", "70000"), "70000 is not between 0 and 65535"),
        (("nameserver", "--set", "log_level=loud"), "--set log_level: log_level is 'loud'"),
        (("broker", "--name", "no spaces"), "--name: broker_name is 'no spaces'"),
    ],
)
def test_wrong_options_are_told_in_one_line(arguments: tuple[str, ...], complaint: str) -> None:
    said = in_process(*arguments)
    assert complaint in said
    assert said.count("\n") == 1


def test_an_advertised_address_that_nobody_reaches_is_doubted(tmp_path: Path) -> None:
    arguments = ("--port", 0, "--nameserver-port", 0, "--data", tmp_path / "d", *SMALL)
    with serving("up", "--json", "--advertise", "203.0.113.7:10911", *arguments) as server:
        code, err = server.stop()
    assert code == 0
    assert "clients are told 203.0.113.7:10911, but the broker listens on 127.0.0.1 only" in err


# -- TLS ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for this machine and its key, signed by itself."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    paths = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"),
            *("-out", str(paths[0]), "-keyout", str(paths[1])),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return paths


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_a_node_that_speaks_tls(tmp_path: Path, certificate: tuple[Path, Path], mode: str) -> None:
    trusted, key = certificate
    settings = {"mode": mode, "certificate": trusted, "key": key, "trusted": trusted}
    arguments = ("--port", 0, "--nameserver-port", 0, "--data", tmp_path / "d", *SMALL)
    pairs = [f"--set=tls.{name}={value}" for name, value in settings.items()]
    with serving("up", "--json", *arguments, *pairs) as server:
        address = server.ready["nameserver"]

        def run(*command: object, text: str = "") -> int:
            given = ["--nameserver", address, "--timeout", "60000"]
            return CliRunner().invoke(root, [*map(str, command), *given], input=text).exit_code

        assert run("produce", "T", "--tls-trusted", trusted, text="one\n") == 0
        assert run("consume", "T", "--tls-trusted", trusted) == 0
        assert run("status", "--tls-trusted", trusted) == 0
        assert run("status", "--tls") == 2  # nobody here trusts it
        assert run("status") == (0 if mode == "permissive" else 2)
        assert server.stop()[0] == 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")
def test_the_certificate_that_a_node_creates_can_be_trusted(tmp_path: Path) -> None:
    arguments = ("--port", 0, "--nameserver-port", 0, "--data", tmp_path / "d", *SMALL)
    trusted = tmp_path / "d" / "tls" / "certificate.pem"
    for _ in range(2):  # also after a restart
        with serving("up", "--json", *arguments) as server:

            def run(*command: object, text: str = "", address: str = server.ready["nameserver"]) -> Result:
                given = ["--nameserver", address, "--timeout", "60000"]
                return CliRunner().invoke(root, [*map(str, command), *given], input=text)

            refused = run("status", "--tls")
            assert refused.exit_code == 2
            assert "keeps it in tls/certificate.pem of its data directory" in refused.stderr
            assert run("produce", "T", "--tls-trusted", trusted, text="one\n").exit_code == 0
            assert run("status", "--tls-trusted", trusted).exit_code == 0
            assert server.stop()[0] == 0


def test_places_and_addresses_that_cannot_be(tmp_path: Path) -> None:
    """Found before anything is listened on, or told with what would help."""
    file, free = tmp_path / "file", ("--port", 0, "--nameserver-port", 0)
    file.write_text("")
    for command in ("up", "nameserver", "broker", "coordinator"):
        assert f"{file} is not a directory; name one with --data" in refused(command, "--data", file)
    for address in ("x:y", "http://broker:10911", "a b", "broker:99999"):
        told = refused("up", "--data", tmp_path / "d", *free, "--advertise", address)
        assert f"advertised_address is {address!r}; write a name or address that clients can dial" in told
    told = refused("up", "--data", tmp_path / "d", *free, "--host", "203.0.113.7", "--listen-anywhere")
    assert "cannot assign requested address; choose an address of this machine, 127.0.0.1 for" in told


def test_tls_without_a_certificate_is_told() -> None:
    assert "no certificate or key" in refused(
        "up", "--set=tls.mode=enforcing", "--port", 0, "--nameserver-port", 0
    )
