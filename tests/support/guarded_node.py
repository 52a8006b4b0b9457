"""A broker that asks who one is, and speaks nothing but TLS: what the options of access are tested against."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import penstock
from penstock.client.loop_thread import LoopThread
from penstock.remoting import TlsMode, TlsOptions
from penstock.runtime import Runtime
from penstock.security import AccessOptions, NodeAccess
from penstock.testing.embedded import EmbeddedBroker
from tests.support.certificates import make_certificate
from tests.waiting import PATIENT_SENDS

# Not one of them is in any file, text or answer but the users' own file.
SECRETS = {
    "admin": "admin-secret-f81d",
    "spark": "spark-secret-27ac",
    "writer": "writer-secret-90be",
    "idle": "idle-secret-5530",
}
USERS = f"""
[users.admin]
secret = "{SECRETS["admin"]}"
roles = ["admin"]
[users.spark]
secret = "{SECRETS["spark"]}"
roles = ["producer", "consumer"]
topics = ["in-*", "out-*"]
groups = ["spark"]
[users.writer]
secret = "{SECRETS["writer"]}"
roles = ["producer"]
topics = ["out-*"]
[users.idle]
secret = "{SECRETS["idle"]}"
roles = ["consumer"]
topics = ["nothing"]
"""


class GuardedNode:
    """`options(user)` are those of a read or a write; `admin` and `producer` may do everything."""

    def __init__(self, server: EmbeddedBroker, folder: Path, certificate: str) -> None:
        self.server, self.folder, self.certificate = server, folder, certificate
        self.address = server.address
        keys: dict[str, Any] = {"access_key": "admin", "secret_key": SECRETS["admin"]}
        keys["tls"] = TlsOptions(trusted=certificate)
        self.admin = penstock.Admin(self.address, **keys)
        self.producer = penstock.Producer(
            self.address, group="guarded", batch_size=512, **keys, **PATIENT_SENDS
        )

    def options(self, user: str, secret: str = "", **more: str) -> dict[str, str]:
        keys = {"accessKey": user, "secretKey": secret or SECRETS[user]}
        return {"nameserver": self.address, **keys, "tlsTrusted": self.certificate, **more}

    def keys_file(self, user: str) -> Path:
        path = self.folder / f"{user}.toml"
        path.write_text(f'access_key = "{user}"\nsecret_key = "{SECRETS[user]}"\n')
        return path

    def send(self, topic: str, bodies: list[bytes]) -> None:
        queues = list(self.producer.queues(topic))
        sent = [
            self.producer.send_async(topic, body, queue=queues[number % len(queues)])
            for number, body in enumerate(bodies)
        ]
        for future in sent:
            future.result(120)

    def stored(self, topic: str) -> list[bytes]:
        """Every body of a topic, queue by queue."""
        found: list[bytes] = []
        for queue in self.admin.queues(topic):
            offset = 0
            while page := self.admin.read_messages(queue, offset, limit=1_000):
                found += [message.body for message in page]
                offset = page[-1].queue_offset + 1
        return found


@contextmanager
def guarded_node(folder: Path) -> Iterator[GuardedNode]:
    """Its users and certificates are in the folder, its data below it."""
    certificate, key = make_certificate(folder)
    (folder / "access.toml").write_text(USERS)
    tls = TlsOptions(TlsMode.ENFORCING, certificate, key, certificate)
    access = NodeAccess.of(AccessOptions(enabled=True), folder, Runtime.system())
    server = EmbeddedBroker(folder / "data", tls=tls, access=access)
    thread = LoopThread("penstock-guarded")
    try:
        thread.run(server.start())
        try:
            node = GuardedNode(server, folder, certificate)
            with node.admin, node.producer:
                yield node
        finally:
            thread.run(server.stop())
    finally:
        thread.stop()
