"""`penstock acl`, and that servers and clients of the command line keep secrets to themselves."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock.cli.clients import Cluster
from penstock.cli.config import Configuration
from penstock.cli.main import root
from penstock.cli.node import NodeOptions
from penstock.errors import OptionError
from penstock.security import AccessOptions

SECRET = "typed-secret-do-not-tell"


def call(path: Path, *words: str, text: str = "") -> Result:
    return CliRunner().invoke(root, ["acl", *words, "--users", str(path)], input=text)


def test_a_new_user_is_told_its_secret_once(tmp_path: Path) -> None:
    path = tmp_path / "data" / "access.toml"
    added = call(path, "add", "root", "--role", "admin", "--json")
    assert added.exit_code == 0, added.output
    secret = json.loads(added.stdout)["secret"]
    assert len(secret) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = call(path, "add", "root", "--role", "admin")
    assert secret not in again.output
    assert secret in path.read_text()
    for words in (("list",), ("list", "--json"), ("explain", "root", "Get", "Cluster:*", "--json")):
        shown = call(path, *words)
        assert shown.exit_code == 0, shown.output
        assert secret not in shown.output


@pytest.mark.abuse("A11")
def test_roles_are_shown_and_a_refusal_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    words = ("--role", "producer", "--role", "consumer", "--topic", "orders-*", "--group", "billing")
    added = call(path, "add", "billing", *words, "--secret-stdin", text=f"{SECRET}\n")
    assert added.exit_code == 0, added.output
    listed = json.loads(call(path, "list", "--json").stdout)
    assert listed[0]["entries"] == [
        "Allow Sub on Group:billing",
        "Allow Pub, Sub on Topic:orders-*",
    ] or listed[0]["entries"] == ["Allow Pub, Sub on Topic:orders-*", "Allow Sub on Group:billing"]
    may = call(path, "explain", "billing", "Pub", "Topic:orders-2026")
    assert (may.exit_code, "billing may Pub on Topic:orders-2026" in may.stdout) == (0, True)
    not_that = call(path, "explain", "billing", "Pub", "Topic:payments", "--json")
    assert not_that.exit_code == 1
    assert json.loads(not_that.stdout)["because"].startswith("no entry is about it")
    retry = call(path, "explain", "billing", "Pub", "Topic:%RETRY%billing")
    assert (retry.exit_code, "Sub on Group:billing" in retry.stdout) == (0, True)
    assert call(path, "explain", "nobody", "Pub", "Topic:a").exit_code == 1
    for result in (added, may, not_that, retry):
        assert SECRET not in result.output
    assert call(path, "remove", "billing").exit_code == 0
    assert SECRET not in path.read_text()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("add", "a b"), "cannot be a user's name"),
        (("add", "a", "--role", "king"), "no role"),
        (("add", "a", "--topic", "x"), "say where a role applies"),
        (("add", "a", "--role", "producer", "--topic", "a*b"), "no resource"),
        (("explain", "a", "Eat", "Topic:x"), "no action"),
    ],
)
def test_mistakes_are_told_and_change_nothing(tmp_path: Path, words: tuple[str, ...], complaint: str) -> None:
    path = tmp_path / "access.toml"
    assert call(path, "add", "a", "--role", "admin").exit_code == 0
    before = path.read_bytes()
    result = call(path, *words)
    assert result.exit_code == 2
    assert complaint in result.output
    assert path.read_bytes() == before


def test_a_plain_acl_is_looked_at_and_not_written(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(f"accounts:\n- accessKey: app\n  secretKey: {SECRET}\n  topicPerms: [orders=PUB]\n")
    assert call(path, "explain", "app", "Pub", "Topic:orders").exit_code == 0
    assert "edited by hand" in call(path, "add", "b", "--role", "admin").output
    assert SECRET not in call(path, "list").output


def configuration(**environment: str) -> Configuration:
    made = Configuration(["nameserver", "broker", "store", "remoting", "tls", "access"])
    made.add_environment(environment)
    return made


@pytest.mark.abuse("A11")
def test_no_complaint_about_a_setting_quotes_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("[access]\nsecret_key = 123456789\naccess_key = 'a'\n")
    made = configuration()
    made.add_file(file)
    with pytest.raises(OptionError) as caught:
        made.options("access", AccessOptions)
    assert "penstock.toml:2" in str(caught.value)
    assert "123456789" not in str(caught.value)
    with pytest.raises(OptionError) as caught:
        configuration(PENSTOCK_ACCESS_SECRET_KEY=SECRET).options("access", AccessOptions)
    assert SECRET not in str(caught.value)
    cluster = Cluster("127.0.0.1:9876", 3_000, access_key="a", secret_key=SECRET)
    options = NodeOptions.of(
        configuration(PENSTOCK_ACCESS_SECRET_KEY=SECRET, PENSTOCK_ACCESS_ACCESS_KEY="a"),
        ("nameserver", "broker"),
    )
    assert SECRET not in f"{cluster!r} {options!r}"


@pytest.mark.abuse("A11")
@pytest.mark.parametrize("name", ["secret_key", "cluster_secret"])
def test_a_secret_in_a_servers_arguments_is_warned_of(name: str) -> None:
    made = configuration()
    made.add_pairs([f"access.{name}={SECRET}", "broker.port=0"])
    (warning,) = made.warnings
    assert f"PENSTOCK_ACCESS_{name.upper()}" in warning
    assert "--config" in warning
    assert SECRET not in warning
    quiet = configuration(**{f"PENSTOCK_ACCESS_{name.upper()}": SECRET})
    assert quiet.warnings == []


@pytest.mark.abuse("A11")
def test_a_secret_among_sparks_settings_is_warned_of() -> None:
    """Spark passes its settings to its JVM as arguments."""
    result = CliRunner().invoke(
        root, ["pipeline", "archive", "--conf", f"spark.executorEnv.PENSTOCK_SECRET_KEY={SECRET}"]
    )
    assert "spark.executorEnv.PENSTOCK_SECRET_KEY: `ps` shows this secret" in result.stderr
    assert SECRET not in result.output


@pytest.mark.parametrize("key", ["aclEnable", "authenticationEnabled", "authorizationEnabled"])
def test_rocketmqs_switches_turn_access_control_on(tmp_path: Path, key: str) -> None:
    file = tmp_path / "broker.conf"
    inner = '{"accessKey":"inner","secretKey":"' + SECRET + '"}'
    file.write_text(f"{key}=true\naclEnable=false\ninnerClientAuthenticationCredentials={inner}\n")
    if key == "aclEnable":
        file.write_text(f"{key}=true\ninnerClientAuthenticationCredentials={inner}\n")
    made = configuration()
    made.add_file(file)
    options = made.options("access", AccessOptions)
    assert (options.enabled, options.access_key, options.secret_key) == (True, "inner", SECRET)
    assert made.warnings == []


@pytest.mark.abuse("A11")
def test_credentials_that_cannot_be_read_are_not_quoted(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("innerClientAuthenticationCredentials={" + SECRET + "\n")
    with pytest.raises(OptionError) as caught:
        configuration().add_file(file)
    assert SECRET not in str(caught.value)


@pytest.mark.abuse("A9")
@pytest.mark.abuse("A10")
def test_a_public_address_needs_access_control_and_is_warned_of_without_tls() -> None:
    public = {"PENSTOCK_NAMESERVER_HOST": "0.0.0.0", "PENSTOCK_BROKER_HOST": "0.0.0.0"}
    with pytest.raises(OptionError, match="there is no access control"):
        NodeOptions.of(configuration(**public), ("nameserver", "broker"))
    guarded = configuration(**public, PENSTOCK_ACCESS_ENABLED="true")
    NodeOptions.of(guarded, ("nameserver", "broker"))
    assert any("without TLS" in warning for warning in guarded.warnings)
    secure = configuration(**public, PENSTOCK_ACCESS_ENABLED="true", PENSTOCK_TLS_MODE="enforcing")
    NodeOptions.of(secure, ("nameserver", "broker"))
    assert not any("without TLS" in warning for warning in secure.warnings)
