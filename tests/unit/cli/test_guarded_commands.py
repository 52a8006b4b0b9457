"""The commands of a cluster with access control: keys from flags, a file and the environment, and a clear refusal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client.loop_thread import LoopThread
from penstock.runtime import Runtime
from penstock.security import AccessOptions, NodeAccess
from penstock.testing.embedded import EmbeddedBroker
from tests.support.cluster_commands import Commands, lines
from tests.support.guarded import ADMIN_SECRET, SECRET, USERS


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    folder = tmp_path / "guarded"
    folder.mkdir()
    (folder / "access.toml").write_text(USERS)
    access = NodeAccess.of(AccessOptions(enabled=True), folder, Runtime.system())
    server = EmbeddedBroker(folder / "data", access=access)
    thread = LoopThread("guarded")
    try:
        thread.run(server.start())
        try:
            yield Commands(server.address)
        finally:
            thread.run(server.stop())
    finally:
        thread.stop()


def test_keys_from_flags_file_and_environment(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "admin.secret"
    secret.write_text(f"{ADMIN_SECRET}\n")
    admin = ("--access-key", "admin", "--secret-file", secret)
    commands.ok("topic", "create", "orders", "--queues", 2, *admin)
    assert "orders" in commands.ok("topic", "list", *admin)
    assert "test-broker" in commands.ok("status", *admin)
    toml = tmp_path / "keys.toml"
    toml.write_text(f'access_key = "app"\nsecret_key = "{SECRET}"\n')
    commands.ok("produce", "orders", "--credentials", toml, text=lines(["one", "two"]))
    tools = tmp_path / "tools.yml"
    tools.write_text(f"accessKey: app\nsecretKey: {SECRET}   # as mqadmin has it\n")
    monkeypatch.setenv("PENSTOCK_CREDENTIALS", str(tools))
    assert {found["body"] for found in commands.json_lines("consume", "orders")} == {"one", "two"}
    monkeypatch.delenv("PENSTOCK_CREDENTIALS")
    monkeypatch.setenv("PENSTOCK_ACCESS_KEY", "app")
    monkeypatch.setenv("PENSTOCK_SECRET_KEY", SECRET)
    assert len(commands.json_lines("consume", "orders", "--group", "billing")) == 2


@pytest.mark.abuse("A9")
@pytest.mark.abuse("A11")
def test_a_refusal_is_one_line_that_says_why(commands: Commands, tmp_path: Path) -> None:
    broken = tmp_path / "keys.toml"
    broken.write_text(f'secret_key = "{SECRET}\n')
    wrong, right, empty = (tmp_path / name for name in ("wrong", "right", "empty"))
    wrong.write_text("wrong-secret")
    right.write_text(SECRET)
    empty.write_text("\n")
    for keys, complaint in (
        ((), "not signed"),
        (("--access-key", "app", "--secret-file", wrong), "not valid"),
        (("--access-key", "reader", "--secret-file", right), "no permission for"),
        (("--access-key", "app"), "belong together"),
        (("--secret-file", right), "belong together"),
        (("--access-key", "app", "--secret-file", empty), "first line is empty"),
        (("--access-key", "app", "--secret-file", tmp_path / "nowhere"), "No such file"),
        (("--credentials", tmp_path / "nowhere.toml"), "No such file"),
        (("--credentials", broken), "no TOML"),
    ):
        told = commands.refused("topic", "describe", "orders", *keys)
        assert complaint in told
        assert SECRET not in told
        assert "wrong-secret" not in told


@pytest.mark.abuse("A11")
def test_a_secret_on_the_command_line_works_with_a_warning_that_says_what_to_use(
    commands: Commands, tmp_path: Path
) -> None:
    """`ps` shows it to every user of the machine."""
    result = commands("topic", "list", "--access-key", "admin", "--secret-key", ADMIN_SECRET)
    assert result.exit_code == 0
    assert "--secret-file" in result.stderr
    assert "PENSTOCK_SECRET_KEY" in result.stderr
    assert ADMIN_SECRET not in result.output
    file = tmp_path / "secret"
    file.write_text(ADMIN_SECRET)
    quiet = commands("topic", "list", "--access-key", "admin", "--secret-file", file)
    assert quiet.exit_code == 0
    assert "ps" not in quiet.stderr
    both = commands(
        "topic", "list", "--access-key", "admin", "--secret-file", file, "--secret-key", "other-secret"
    )
    assert both.exit_code == 2
    assert "Leave --secret-key out" in both.stderr
    assert "other-secret" not in both.output
