"""A set whose every connection is secured: TLS, signed requests, the cluster's secret at the replication port.

The master is killed, another takes over, nothing is lost: what secures it must not stand in its way. A stranger gets
nothing from any of its ports.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import struct
import subprocess
from pathlib import Path

import pytest

import penstock
from penstock.client.staging import Handle, Staging
from penstock.errors import PenstockError
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.remoting import RemotingClient, TlsOptions
from penstock.runtime import Runtime
from penstock.security import Credentials, SigningHook
from tests.support import broker_set as sets
from tests.support.broker_set import BrokerSet, broker_set
from tests.support.staging_pair import TOPIC, items

SECRET, ADMIN_SECRET = "app-secret-do-not-tell", "admin-secret-do-not-tell"
CLUSTER_SECRET = "cluster-secret-do-not-tell"
USERS = f"""
[users.app]
secret = "{SECRET}"
roles = ["producer", "consumer"]
topics = ["orders"]
groups = ["billing"]

[users.rival]
secret = "{SECRET}"
roles = ["producer"]
topics = ["orders"]

[users.admin]
secret = "{ADMIN_SECRET}"
roles = ["admin"]
"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with"),
]


def certificate(folder: Path) -> tuple[str, str]:
    found, key = folder / "certificate.pem", folder / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=penstock",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(found)]
    subprocess.run(command, check=True, capture_output=True)
    return str(found), str(key)


def call(address: str, command: Command, tls: TlsOptions | None, *, signs: bool = True) -> Command:
    async def main() -> Command:
        runtime = Runtime.system()
        hook = SigningHook(Credentials("admin", ADMIN_SECRET), runtime) if signs else None
        client = RemotingClient(runtime=runtime, tls=tls, hook=hook)
        try:
            return await client.call(address, command, 5_000)
        finally:
            await client.close()

    return asyncio.run(main())


def replication_port(one: BrokerSet) -> tuple[str, int]:
    """Where the replicas say that they follow; the port behind the broker's own may have been taken."""
    found = re.findall(r"follows ([\d.]+):(\d+) in epoch", "".join(node.complaints() for node in one.brokers))
    return found[-1][0], int(found[-1][1])


def heard_at(address: tuple[str, int], data: bytes) -> bytes:
    """What a port says to these bytes until it hangs up."""
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(data)
        found = b""
        while True:
            try:
                piece = connection.recv(65_536)
            except ConnectionError:
                return found
            if not piece:
                return found
            found += piece


@pytest.mark.fault("F1")
@pytest.mark.abuse("A9")
@pytest.mark.abuse("A12")
@pytest.mark.abuse("A24")
def test_a_secured_set_fails_over_and_tells_strangers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted, key = certificate(tmp_path)
    users = tmp_path / "access.toml"
    users.write_text(USERS)
    for name, value in {
        "PENSTOCK_TLS_MODE": "enforcing",
        "PENSTOCK_TLS_CERTIFICATE": trusted,
        "PENSTOCK_TLS_KEY": key,
        "PENSTOCK_TLS_TRUSTED": trusted,
        "PENSTOCK_ACCESS_ENABLED": "true",
        "PENSTOCK_ACCESS_USERS_FILE": str(users),
        "PENSTOCK_ACCESS_CLUSTER_SECRET": CLUSTER_SECRET,
        "PENSTOCK_ACCESS_REQUIRE_STAMP": "true",
        "PENSTOCK_ACCESS_KEY": "app",
        "PENSTOCK_SECRET_KEY": SECRET,
    }.items():
        monkeypatch.setenv(name, value)
    tls = TlsOptions(trusted=trusted)
    monkeypatch.setattr(sets, "raw", lambda address, command, timeout_ms=0: call(address, command, tls))
    # At this level the log of a replica says which replication port it follows.
    with broker_set(tmp_path, "--log-level", "info") as one:
        with (
            penstock.Producer(one.names.address, tls=tls, send_timeout_ms=10_000, retries=10) as producer,
            Staging(one.names.address, tls=tls) as staging,
        ):
            producer.send("orders", b"0")
            home = staging.home("q", "orders").broker
            first, kept = (staging.stage(home, TOPIC, items(number), 1) for number in (1_001, 1_002))
            staging.publish(home, "q", 0, [first])
            sent = {b"%d" % number for number in range(200)}
            for body in sorted(sent):
                producer.send("orders", body)
            strangers(one, tls)
            master, before = one.leader(1)
            master.kill()
            one.wait(1, epoch=before + 1)
            for number in range(200, 300):
                sent.add(b"%d" % number)
                producer.send("orders", b"%d" % number)
            with pytest.raises(PenstockError, match="no permission"):
                producer.send("other", b"x")
            publications_keep_their_owner(one, tls, staging, home, kept)
            sent |= {b"1001", b"1002"}
        found: set[bytes] = set()
        with penstock.Consumer(one.names.address, "billing", tls=tls, start_from="first") as consumer:
            consumer.subscribe("orders")
            for message in consumer:
                found.add(message.body)
                if found == sent:
                    break
        logs = [server.complaints() for server in (one.names, one.coordinator, *one.brokers)]
    for secret in (SECRET, ADMIN_SECRET, CLUSTER_SECRET):
        assert not any(secret in log for log in logs)


def publications_keep_their_owner(
    one: BrokerSet, tls: TlsOptions, staging: Staging, home: str, kept: Handle
) -> None:
    """At the new master: the batch numbers, the handle's key and the users of both are those of the old one."""
    keys = {"access_key": "rival", "secret_key": SECRET}
    with Staging(one.names.address, tls=tls, **keys) as rival:
        assert rival.home("q", "orders").status.batch_id is None
        with pytest.raises(PenstockError, match="another user staged these messages"):
            rival.publish(home, "q", 1, [kept])
    assert staging.status(home, "q").batch_id == 0
    assert staging.publish(home, "q", 0, [kept]).already
    assert not staging.publish(home, "q", 1, [kept]).already


def strangers(one: BrokerSet, tls: TlsOptions) -> None:
    """Without TLS, without a signature, and without the secret."""
    question = Command(RequestCode.GET_BROKER_RUNTIME_INFO)
    for server in (one.names, one.coordinator, *one.brokers):
        with pytest.raises(PenstockError):
            call(server.address, question, None)
        code = (
            RequestCode.COORDINATOR_STATUS
            if server is one.coordinator
            else RequestCode.GET_ROUTEINFO_BY_TOPIC
        )
        answer = call(server.address, Command(code, {"topic": "orders"}), tls, signs=False)
        assert answer.code in (16, 3), answer  # 3: a broker has no routes
        assert b"orders" not in answer.body
    # A slave of RocketMQ's says how far it is and gets the log; here it gets a TLS alert at most.
    assert b"body" not in heard_at(replication_port(one), struct.pack(">q", 0))
    assert len(heard_at(replication_port(one), b"PSTKHELO" + b"x" * 16)) < 100
