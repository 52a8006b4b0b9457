"""plain_acl.yml of 4.9 and Penstock's own file: what they say, what they refuse, and that no error shows a secret."""

import stat
from pathlib import Path

import pytest

from penstock.errors import OptionError
from penstock.runtime import SystemDisk
from penstock.security.plain_acl import FILE_BYTES_MAX, read_plain_acl
from penstock.security.policy import Action, Kind, Need
from penstock.security.users import User
from penstock.security.users_file import read_users, save_users, write_users
from penstock.testing.disk import FaultyDisk

SECRET = "do-not-tell-12345"
PLAIN = f"""
globalWhiteRemoteAddresses:
- 10.10.103.*
- 192.168.0.*
accounts:
- accessKey: RocketMQ
  secretKey: {SECRET}
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC=SUB
  groupPerms:
  # the group should convert to retry topic
  - groupA=DENY
- accessKey: rocketmq2
  secretKey: 0012345678
  whiteRemoteAddress: 192.168.1.*
  # if it is admin, it could access all resources
  admin: true
"""
OWN = f"""
[users.billing]
secret = "{SECRET}"
roles = ["producer", "consumer"]
topics = ["orders", "invoices-*"]
groups = ["billing"]
entries = [{{ resource = "Topic:audit", actions = ["Sub"], decision = "Deny", sources = ["10.0.0.0/8"] }}]

[users.root]
secret = "another-secret"
roles = ["admin"]
"""


def may(user: User, kind: Kind, name: str, action: Action) -> bool:
    return user.may(Need(kind, name, (action,)), "127.0.0.1")


def test_the_accounts_of_rocketmqs_own_example() -> None:
    users = read_plain_acl(PLAIN.encode(), "plain_acl.yml")
    user, admin = users.by_name["RocketMQ"], users.by_name["rocketmq2"]
    assert users.trusted_sources.contain("10.10.103.9")
    assert not users.trusted_sources.contain("127.0.0.1")
    assert may(user, Kind.TOPIC, "topicB", Action.PUB)
    assert may(user, Kind.TOPIC, "topicB", Action.SUB)
    assert may(user, Kind.TOPIC, "topicC", Action.SUB)
    assert not may(user, Kind.TOPIC, "topicC", Action.PUB)
    assert not may(user, Kind.TOPIC, "topicA", Action.SUB)
    assert not may(user, Kind.TOPIC, "other", Action.SUB)
    assert may(user, Kind.GROUP, "other", Action.SUB)
    assert not may(user, Kind.GROUP, "groupA", Action.SUB)
    assert not may(user, Kind.TOPIC, "topicB", Action.CREATE)
    assert not may(user, Kind.CLUSTER, "*", Action.GET)
    assert admin.is_super
    assert admin.secret == "0012345678"  # digits are text, whatever YAML makes of them
    assert admin.trusted_sources.contain("192.168.1.4")
    assert not user.trusted


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("accounts: [{accessKey: a, secretKey: SECRET, admn: true}]", "no setting admn"),
        ("accounts: [{accessKey: a, secretKey: SECRET, admin: maybe}]", "admin is neither"),
        ("accounts: [{accessKey: a, secretKey: SECRET, topicPerms: [x]}]", "topicPerms has 'x'"),
        ("accounts: [{accessKey: a, secretKey: SECRET, topicPerms: [x=ALL]}]", "no permission 'ALL'"),
        ("accounts: [{accessKey: a, secretKey: SECRET, topicPerms: x}]", "no list"),
        ("accounts: [{accessKey: a, secretKey: SECRET}, {accessKey: a, secretKey: SECRET}]", "two accounts"),
        ("accounts: [{accessKey: 'a b', secretKey: SECRET}]", "cannot be a user's name"),
        ("accounts: [{accessKey: a, secretKey: x}]", "has 1 characters"),
        ("accounts: [{accessKey: a, secretKey: SECRET, whiteRemoteAddress: 1.2.3}]", "address"),
        ("accounts: [x]", "is no account"),
        ("accounts: x", "no list"),
        ("[]", "no accounts"),
        ("accounts:\n- secretKey: SECRET: [\n", "no YAML in line"),
        ("accounts: !!python/object/apply:os.system ['SECRET']", "is no account"),
        ("x: &a [SECRET]\naccounts: [*a, *a]", "anchors"),
        ("[" * 40 + "]" * 40, "nested"),
    ],
)
@pytest.mark.abuse("A11")
@pytest.mark.abuse("A23")
def test_mistakes_in_a_plain_acl_are_told_without_its_secrets(text: str, complaint: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_plain_acl(text.replace("SECRET", SECRET).encode(), "plain_acl.yml")
    assert complaint in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_huge_file_is_not_read() -> None:
    with pytest.raises(OptionError, match="at most"):
        read_plain_acl(b"#" * (FILE_BYTES_MAX + 1), "plain_acl.yml")


def test_roles_are_entries() -> None:
    users = read_users(OWN.encode(), "access.toml")
    billing = users.by_name["billing"]
    assert may(billing, Kind.TOPIC, "orders", Action.PUB)
    assert may(billing, Kind.TOPIC, "invoices-2026", Action.SUB)
    assert may(billing, Kind.GROUP, "billing", Action.SUB)
    assert not may(billing, Kind.TOPIC, "payments", Action.PUB)
    assert not may(billing, Kind.GROUP, "other", Action.SUB)
    assert not may(billing, Kind.TOPIC, "orders", Action.DELETE)
    assert users.by_name["root"].is_super


@pytest.mark.abuse("A11")
def test_what_is_written_is_read_again_and_only_its_owner_can(tmp_path: Path) -> None:
    users = read_users(OWN.encode(), "access.toml").put(User("odd", 'sécret "x" \\ \x7f'))
    path = tmp_path / "new" / "access.toml"
    save_users(SystemDisk(), path, users)
    again = read_users(path.read_bytes(), str(path))
    assert again.by_name == users.by_name
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["access.toml"]
    assert SECRET not in repr(again)
    assert SECRET in write_users(again).decode()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[users.a]\nsecret = "SECRET"\nrole = "admin"', "no setting role"),
        ('[users.a]\nsecret = "SECRET"\nroles = ["king"]', "no role 'king'"),
        ('[users.a]\nsecret = "SECRET"\ntopics = ["x"]', "no role for them"),
        ('[users.a]\nsecret = "SECRET"\nroles = "admin"', "no list of texts"),
        ('[users.a]\nsecret = "SECRET"\nenabled = 1', "neither true nor false"),
        ('[users.a]\nsecret = "SECRET"\nentries = [{ resource = "Topic:a" }]', "no actions"),
        ('[users.a]\nsecret = "SECRET"\nentries = [{ resource = "x", actions = ["Pub"] }]', "no resource"),
        ('[users.a]\nsecret = "SECRET"\nentries = [{ actions = ["Eat"] }]', "no action 'Eat'"),
        ("[users.a]\nsecret = 12345", "has no secret"),
        ("[users]\na = 'SECRET'", "is no table"),
        ('[users.a]\nsecret = "SECRET\nroles = []', "no TOML at line 2"),
        ('[other]\nx = "SECRET"', "no setting other"),
    ],
)
@pytest.mark.abuse("A11")
def test_mistakes_in_a_users_file_are_told_without_its_secrets(text: str, complaint: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_users(text.replace("SECRET", SECRET).encode(), "access.toml")
    assert complaint in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.fault("F5")
@pytest.mark.fault("F6")
def test_power_loss_at_every_step_of_a_change_leaves_the_old_users_or_the_new(tmp_path: Path) -> None:
    old = read_users(OWN.encode(), "access.toml")
    new = old.put(User("another", SECRET)).without("billing")
    outcomes = set()
    for step in range(40):
        is_done = False
        for kept in range(3):
            path = tmp_path / f"{step}-{kept}" / "access.toml"
            save_users(SystemDisk(), path, old)
            disk = FaultyDisk(path.parent, lose_directory_entries=True)
            disk.stop_after(step)
            try:
                save_users(disk, path, new)
                is_done = True
            except OSError:
                assert not disk.has_power
            disk.crash(kept_entries=kept)
            found = read_users(path.read_bytes(), str(path)).by_name
            assert found in ([new.by_name] if is_done else [old.by_name, new.by_name]), (step, kept)
            outcomes.add(found == new.by_name)
        if is_done:
            break
    else:
        raise AssertionError("it never ended")
    assert outcomes == {True, False}
