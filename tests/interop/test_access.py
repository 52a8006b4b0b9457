"""Real clients against access control: allowed, refused, with another secret, and changed on the way."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.access_server import GuardedServer, access_driver, admin_driver
from tests.interop.go_release import GO_CLIENT, missing_go, prepare_driver
from tests.interop.java_release import VERSIONS, missing_tools
from tests.interop.wire.driver import Driver, DriverError
from tests.interop.wire.servers import SERVERS, or_skip, started
from tests.support.certificates import make_certificate

pytestmark = [pytest.mark.interop]
SECRET = "app-secret-do-not-tell"
ADMIN_SECRET = "admin-secret-do-not-tell"
NO_PERMISSION, NO_ROUTE = 16, 10005
PLAIN_ACL = f"""
accounts:
- accessKey: app
  secretKey: {SECRET}
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - orders=PUB|SUB
  - reports=SUB
  groupPerms:
  - billing=SUB
- accessKey: admin
  secretKey: {ADMIN_SECRET}
  admin: true
"""
USERS = f"""
[users.app]
secret = "{SECRET}"
roles = ["producer", "consumer"]
topics = ["orders"]
groups = ["billing"]

[users.admin]
secret = "{ADMIN_SECRET}"
roles = ["admin"]
"""


# Each release with the file of its own kind.
PAIRS = list(zip(VERSIONS, ("access.toml", "plain_acl.yml"), strict=True))


@pytest.fixture(scope="module", params=PAIRS, ids=[version for version, _ in PAIRS])
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    found: tuple[str, str] = request.param
    return found


@pytest.fixture(scope="module")
def server(pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServer]:
    directory = tmp_path_factory.mktemp("server")
    users = directory / pair[1]
    users.write_text(PLAIN_ACL if users.suffix == ".yml" else USERS)
    running = GuardedServer(directory, f"access.users_file={users}")
    yield running
    running.stop()
    assert SECRET not in running.log()
    assert ADMIN_SECRET not in running.log()


@pytest.fixture(scope="module")
def java(pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    directory = tmp_path_factory.mktemp(f"java-{pair[0]}")
    driver = or_skip(lambda: access_driver(pair[0], directory), missing_tools())
    yield driver
    driver.kill()


def keys(name: str = "app", secret: str = SECRET, **more: object) -> dict[str, object]:
    return {"accessKey": name, "secretKey": secret, **more}


def refusal(act: Callable[[], object]) -> int | None:
    """The code with which it was refused: the broker's 16, or 10005 where the name server told no route."""
    with pytest.raises(DriverError) as caught:
        act()
    assert SECRET not in str(caught.value)
    assert ADMIN_SECRET not in str(caught.value)
    return caught.value.code


def until(driver: Driver, name: str, wanted: set[str]) -> None:
    deadline = time.monotonic() + 30
    while (bodies := set(driver.do("received", name=name)["bodies"])) != wanted:
        assert time.monotonic() < deadline, bodies
        time.sleep(0.1)


@pytest.mark.feature("acl", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.java
def test_a_java_client_with_keys_sends_and_consumes_what_it_may(server: GuardedServer, java: Driver) -> None:
    at = {"nameserver": server.nameserver}
    mark = f"{java.name}-{time.monotonic_ns()}"
    java.do("producer", name="allowed", group="p", **at, **keys())
    java.do("consumer", name="reader", group="billing", topic="orders", fail=True, **at, **keys())
    for batch in (False, True):
        bodies = [f"{mark}-{batch}-{number}" for number in range(3)]
        java.do("send", name="allowed", topic="orders", bodies=bodies, batch=batch)
    sent = [f"{mark}-{batch}-{number}" for batch in (False, True) for number in range(3)]
    deadline = time.monotonic() + 30
    # Each is refused once by the listener: it comes again by way of the group's retry topic.
    wanted = {f"{body}@{again}" for body in sent for again in (0, 1)}
    while not wanted <= set(java.do("received", name="reader")["bodies"]):
        assert time.monotonic() < deadline, java.do("received", name="reader")
        time.sleep(0.1)
    for name in ("allowed", "reader"):
        java.do("close", name=name)


@pytest.mark.feature("acl", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.java
@pytest.mark.abuse("A9")
def test_a_java_client_is_refused_what_it_may_not_do(server: GuardedServer, java: Driver) -> None:
    at = {"nameserver": server.nameserver}
    java.do("producer", name="app", group="p", **at, **keys())
    java.do("producer", name="wrong", group="p", **at, **keys(secret="another-secret"))
    java.do("producer", name="nobody", group="p", **at, **keys("nobody"))
    java.do("producer", name="unsigned", group="p", **at)
    java.do("producer", name="admin", group="p", **at, **keys("admin", ADMIN_SECRET))
    java.do("producer", name="tampered", group="p", **at, **keys(tamper=True))
    java.do("send", name="admin", topic="secret-topic", bodies=["x"])
    for name in ("app", "wrong", "nobody", "unsigned"):
        for batch in (False, True):
            code = refusal(
                lambda name=name, batch=batch: java.do(
                    "send", name=name, topic="secret-topic", bodies=["x", "y"], batch=batch
                )
            )
            assert code in (NO_PERMISSION, NO_ROUTE), (name, code)
    java.do("send", name="app", topic="orders", bodies=["x"])
    assert refusal(lambda: java.do("send", name="tampered", topic="orders", bodies=["x"])) == NO_PERMISSION
    for name in ("app", "wrong", "nobody", "unsigned", "admin", "tampered"):
        java.do("close", name=name)


@pytest.mark.feature("acl", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.java
def test_a_java_clients_token_is_signed_with_the_rest(server: GuardedServer, java: Driver) -> None:
    java.do("producer", name="token", group="p", nameserver=server.nameserver, **keys(token="a-token"))
    assert java.do("send", name="token", topic="orders", bodies=["x"])["ids"]
    java.do("close", name="token")


@pytest.mark.feature("acl", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.java
def test_a_java_consumer_gets_nothing_of_other_topics(server: GuardedServer, java: Driver) -> None:
    at = {"nameserver": server.nameserver}
    java.do("producer", name="admin", group="p", **at, **keys("admin", ADMIN_SECRET))
    java.do("send", name="admin", topic="hidden", bodies=["x"])
    java.do("consumer", name="spy", group="billing", topic="hidden", **at, **keys())
    java.do(
        "consumer", name="admin-reader", group="anyone", topic="hidden", **at, **keys("admin", ADMIN_SECRET)
    )
    until(java, "admin-reader", {"x@0"})
    assert java.do("received", name="spy")["bodies"] == []
    for name in ("admin", "spy", "admin-reader"):
        java.do("close", name=name)


@pytest.mark.feature("acl", "rocketmq-5.3")
def test_the_go_client_with_keys(server: GuardedServer, tmp_path: Path) -> None:
    command = [str(or_skip(prepare_driver, missing_go()))]
    go = Driver(GO_CLIENT, command, tmp_path)
    try:
        at = {"nameserver": server.nameserver}
        go.do("producer", name="allowed", group="p", **at, **keys())
        go.do("producer", name="wrong", group="p", **at, **keys(secret="another-secret"))
        go.do("send", name="allowed", topic="orders", how="sync", messages=[{"body": "go"}])
        go.do("push", name="reader", group="billing", topic="orders", **at, **keys())
        with pytest.raises(DriverError):
            go.do("send", name="wrong", topic="orders", how="sync", messages=[{"body": "go"}])
        with pytest.raises(DriverError):
            go.do("send", name="allowed", topic="reports", how="sync", messages=[{"body": "go"}])
        deadline = time.monotonic() + 30
        while not go.do("received", name="reader")["messages"]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        go.kill()


@pytest.mark.feature("mqadmin", "rocketmq-5.3")
@pytest.mark.feature("acl", "rocketmq-5.3")
@pytest.mark.java
@pytest.mark.abuse("A11")
def test_mqadmin_makes_users_and_policies(tmp_path: Path) -> None:
    users = tmp_path / "access.toml"
    users.write_text(USERS)
    running = GuardedServer(tmp_path, f"access.users_file={users}")
    java = or_skip(lambda: access_driver(VERSIONS[0], tmp_path), missing_tools())
    commands = admin_driver(tmp_path, running.nameserver)
    try:

        def admin(*words: str, secret: str = ADMIN_SECRET) -> str:
            signed = keys("admin", secret)
            printed: str = commands.do("mqadmin", words=words, wait_s=60, **signed)["output"]
            assert SECRET not in printed
            assert ADMIN_SECRET not in printed
            return printed

        assert "not valid" in admin("clusterList", secret="wrong-secret")
        assert "broker-a" in admin("clusterList")
        at = ("-b", running.broker)
        assert "create user to" in admin(
            "createUser", *at, "-u", "shop", "-p", "shop-password", "-t", "Normal"
        )
        listed = admin("listUser", *at)
        assert "shop" in listed
        assert "shop-password" not in listed
        created = admin(
            "createAcl",
            *at,
            "-s",
            "User:shop",
            "-r",
            "Topic:shop-*",
            "-a",
            "Pub",
            "-d",
            "Allow",
            "-i",
            "127.0.0.0/8",
        )
        assert "create acl to" in created, created
        assert "Topic:shop-*" in admin("getAcl", *at, "-s", "User:shop")
        at_server = {"nameserver": running.nameserver}
        java.do("producer", name="shop", group="p", **at_server, **keys("shop", "shop-password"))
        assert java.do("send", name="shop", topic="shop-orders", bodies=["x"])["ids"]
        refusal(lambda: java.do("send", name="shop", topic="orders", bodies=["x"]))
        assert "delete acl to" in admin("deleteAcl", *at, "-s", "User:shop", "-r", "Topic:shop-*")
        refusal(lambda: java.do("send", name="shop", topic="shop-orders", bodies=["x"]))
        assert "delete user to" in admin("deleteUser", *at, "-u", "shop")
        assert '[users."shop"]' not in users.read_text()
        java.do("close", name="shop")
    finally:
        commands.kill()
        java.kill()
        running.stop()
    assert "shop-password" not in running.log()


@pytest.mark.feature("tls", "rocketmq-5.3")
@pytest.mark.java
@pytest.mark.parametrize("name", list(SERVERS))
def test_servers_without_a_configuration_take_tls_and_plain_clients(name: str, tmp_path: Path) -> None:
    java = or_skip(lambda: access_driver(VERSIONS[0], tmp_path), missing_tools())
    (tmp_path / "server").mkdir()
    running = started(name, tmp_path / "server")
    try:
        at = {"nameserver": running.nameserver}
        for tls in (True, False):
            java.do("producer", name=f"producer-{tls}", group="p", tls=tls, **at)
            sent = {"topic": "TopicTest-tls", "bodies": [f"x-{tls}"]}
            assert java.do("send", name=f"producer-{tls}", **sent)["ids"]
    finally:
        java.kill()
        running.stop()


@pytest.mark.feature("tls", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.java
@pytest.mark.abuse("A24")
@pytest.mark.parametrize("version", VERSIONS)
def test_java_clients_over_tls(version: str, tmp_path: Path) -> None:
    """As RocketMQ has it: the client trusts one certificate and verifies; without TLS it gets nothing."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    certificate, key = make_certificate(tmp_path)
    users = tmp_path / "access.toml"
    users.write_text(USERS)
    settings = [
        "tls.mode=enforcing",
        f"tls.certificate={certificate}",
        f"tls.key={key}",
        f"tls.trusted={certificate}",
    ]
    options = ["-Dtls.test.mode.enable=false", "-Dtls.client.authServer=true"]
    options.append(f"-Dtls.client.trustCertPath={certificate}")
    java = or_skip(lambda: access_driver(version, tmp_path, *options), missing_tools())
    running = GuardedServer(tmp_path, f"access.users_file={users}", *settings)
    try:
        at = {"nameserver": running.nameserver}
        java.do("producer", name="secure", group="p", tls=True, **at, **keys())
        assert java.do("send", name="secure", topic="orders", bodies=["x"])["ids"]
        java.do("consumer", name="reader", group="billing", topic="orders", tls=True, **at, **keys())
        until(java, "reader", {"x@0"})
        if version == VERSIONS[0]:  # which takes its time
            java.do("producer", name="plain", group="p", **at, **keys())
            assert refusal(lambda: java.do("send", name="plain", topic="orders", bodies=["x"])) != 0
    finally:
        java.kill()
        running.stop()
