"""The guard of a server, request by request."""

import logging
import os
from pathlib import Path

import pytest

from penstock.errors import OptionError, RequestError
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.runtime import Runtime
from penstock.security import AccessOptions, Credentials, Guard, NodeAccess, SigningHook
from penstock.security.policy import Action
from penstock.security.signatures import sign
from penstock.testing.clock import ManualClock

SECRET = "do-not-tell-12345"
USERS = f"""
[users.app]
secret = "{SECRET}"
roles = ["producer"]
topics = ["orders"]

[users.off]
secret = "{SECRET}"
enabled = false
roles = ["admin"]

[users.root]
secret = "root-{SECRET}"
roles = ["admin"]
"""
LOCAL = "127.0.0.1"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def make(tmp_path: Path, clock: ManualClock, text: str = USERS, **options: object) -> Guard:
    path = tmp_path / "access.toml"
    path.write_text(text)
    return Guard(AccessOptions(enabled=True, **options), path, Runtime(clock=clock))  # type: ignore[arg-type]


def signed(
    name: str, secret: str, code: int = RequestCode.SEND_MESSAGE_V2, *, stamp: bool = False, **fields: str
) -> Command:
    command = Command(code, dict(fields), b"body")
    if stamp:
        SigningHook(Credentials(name, secret), Runtime(clock=ManualClock())).before_request(
            "address", command
        )
    else:
        command.fields["AccessKey"] = name
        command.fields["Signature"] = sign(secret, command.fields, command.body)
    return command


def refusal(guard: Guard, command: Command, source: str = LOCAL) -> str:
    with pytest.raises(RequestError) as caught:
        guard.check(source, command)
    assert caught.value.code == 16
    assert SECRET not in str(caught.value)
    return str(caught.value)


@pytest.mark.abuse("A9")
def test_whatever_is_not_allowed_is_refused_with_what_to_do(tmp_path: Path, clock: ManualClock) -> None:
    guard = make(tmp_path, clock)
    guard.check(LOCAL, signed("app", SECRET, b="orders"))
    assert "no permission for Pub on Topic:other" in refusal(guard, signed("app", SECRET, b="other"))
    assert "not signed" in refusal(guard, Command(310, {"b": "orders"}))
    assert "no such user, or another secret" in refusal(guard, signed("nobody", SECRET, b="orders"))
    assert "no such user, or another secret" in refusal(guard, signed("app", "wrong-secret", b="orders"))
    assert "no such user, or another secret" in refusal(guard, signed("off", SECRET, b="orders"))
    assert "Cluster" in refusal(guard, signed("app", SECRET, RequestCode.UPDATE_BROKER_CONFIG))
    guard.check(LOCAL, signed("root", f"root-{SECRET}", RequestCode.UPDATE_BROKER_CONFIG))


def test_a_request_that_was_changed_on_its_way_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    guard = make(tmp_path, clock)
    command = signed("app", SECRET, b="orders")
    command.body = b"Body"
    assert "not valid" in refusal(guard, command)


@pytest.mark.abuse("A10")
def test_a_stamped_request_is_taken_once_and_a_plain_one_unless_stamps_are_required(
    tmp_path: Path, clock: ManualClock
) -> None:
    guard = make(tmp_path, clock)
    command = signed("app", SECRET, stamp=True, b="orders")
    guard.check(LOCAL, command)
    assert "received before" in refusal(guard, command)
    for _ in range(2):
        guard.check(LOCAL, signed("app", SECRET, b="orders"))
    strict = make(tmp_path, clock, require_stamp=True)
    assert "no stamp" in refusal(strict, signed("app", SECRET, b="orders"))
    strict.check(LOCAL, signed("app", SECRET, stamp=True, b="orders"))


@pytest.mark.abuse("A10")
def test_the_stamp_cannot_be_taken_off(tmp_path: Path, clock: ManualClock) -> None:
    guard = make(tmp_path, clock)
    command = signed("app", SECRET, stamp=True, b="orders")
    guard.check(LOCAL, command)
    del command.fields["PenstockStamp"]
    assert "not valid" in refusal(guard, command)


def test_a_forged_stamp_leaves_no_trace(tmp_path: Path, clock: ManualClock) -> None:
    """Only who has the secret can fill the table of sessions."""
    guard = make(tmp_path, clock, sessions_max=1)
    for _ in range(5):
        refusal(guard, signed("app", "wrong-secret", stamp=True, b="orders"))
    guard.check(LOCAL, signed("app", SECRET, stamp=True, b="orders"))


def test_trusted_addresses_are_not_asked(tmp_path: Path, clock: ManualClock) -> None:
    text = USERS.replace("enabled = false", 'trusted = ["10.2.0.1"]')
    guard = make(tmp_path, clock, f'trusted = ["10.1.*"]\n{text}')
    guard.check("10.1.2.3", Command(RequestCode.UPDATE_BROKER_CONFIG))
    guard.check("10.2.0.1", Command(RequestCode.UPDATE_BROKER_CONFIG, {"AccessKey": "off"}))
    refusal(guard, Command(RequestCode.UPDATE_BROKER_CONFIG, {"AccessKey": "off"}), "10.2.0.2")


def test_require_topic_is_about_the_request_that_is_handled(tmp_path: Path, clock: ManualClock) -> None:
    guard = make(tmp_path, clock)
    guard.check(LOCAL, signed("app", SECRET, b="orders"))
    guard.require_topic("orders", Action.PUB)
    with pytest.raises(RequestError, match="no permission"):
        guard.require_topic("orders", Action.SUB)
    guard.check(LOCAL, signed("root", f"root-{SECRET}"))
    guard.require_topic("orders", Action.SUB)


def test_a_changed_file_is_read_again_and_a_broken_one_is_not(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    guard = make(tmp_path, clock, reload_interval_ms=1_000)
    refusal(guard, signed("app", SECRET, b="other"))
    guard.path.write_text(USERS.replace('["orders"]', '["orders", "other"]'))
    refusal(guard, signed("app", SECRET, b="other"))
    clock.advance(1_000)
    guard.check(LOCAL, signed("app", SECRET, b="other"))
    guard.path.write_text(f'[users.app]\nsecret = "{SECRET}\n')
    os.utime(guard.path, ns=(1, 1))
    clock.advance(1_000)
    with caplog.at_level(logging.ERROR):
        guard.check(LOCAL, signed("app", SECRET, b="other"))
    assert "the users stay as they were" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.abuse("A25")
def test_a_refusal_is_in_the_audit_log_once_for_each_reason(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    guard = make(tmp_path, clock)
    with caplog.at_level(logging.WARNING, "penstock.audit"):
        for _ in range(100):
            refusal(guard, signed("app", SECRET, b="other"))
            refusal(guard, signed("x\ny" * 100, "wrong-secret", b="other"))
    assert len(caplog.records) == 2
    assert all(
        "\n" not in record.getMessage() and len(record.getMessage()) < 500 for record in caplog.records
    )
    assert SECRET not in caplog.text


@pytest.mark.abuse("A25")
def test_refusals_with_ever_new_names_do_not_fill_the_log(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Each was a line: of a stranger's invented users, and of a user's invented topics."""
    guard = make(tmp_path, clock)
    with caplog.at_level(logging.WARNING, "penstock.audit"):
        for number in range(1_000):
            refusal(guard, signed(f"stranger-{number}", "wrong-secret", b="orders"))
            refusal(guard, signed("app", SECRET, b=f"other-{number}"), "10.0.0.7")
        assert len(caplog.records) == 2 * 61
        assert sum("not logged" in record.getMessage() for record in caplog.records) == 2
        clock.advance(60_000)
        refusal(guard, signed("one-more", "wrong-secret", b="orders"))
    assert "one-more" in caplog.records[-1].getMessage()


@pytest.mark.parametrize("text", [None, "", "trusted = []\n"])
def test_access_control_without_users_does_not_start(
    tmp_path: Path, clock: ManualClock, text: str | None
) -> None:
    path = tmp_path / "access.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(OptionError, match="penstock acl add"):
        Guard(AccessOptions(enabled=True), path, Runtime(clock=clock))


def test_a_server_calls_others_as_it_is_told_or_as_the_first_admin(
    tmp_path: Path, clock: ManualClock
) -> None:
    runtime = Runtime(clock=clock)
    guard = make(tmp_path, clock)
    inner = NodeAccess.of(AccessOptions(enabled=True), tmp_path, runtime)
    command = Command(RequestCode.REGISTER_BROKER, {"brokerName": "b"})
    assert inner.hook is not None
    inner.hook.before_request("address", command)
    guard.check(LOCAL, command)
    assert command.fields["AccessKey"] == "root"
    told = NodeAccess.of(AccessOptions(access_key="app", secret_key=SECRET), tmp_path, runtime)
    assert told.guard is None
    assert told.hook is not None
    told.hook.before_request("address", command)
    assert "only an admin" in refusal(guard, command)


@pytest.mark.abuse("A11")
def test_no_text_of_any_of_these_has_the_secret(tmp_path: Path, clock: ManualClock) -> None:
    guard = make(tmp_path, clock)
    options = AccessOptions(access_key="a", secret_key=SECRET, cluster_secret=SECRET)
    credentials = Credentials("app", SECRET, SECRET)
    access = NodeAccess.of(options, tmp_path, Runtime(clock=clock))
    for thing in (guard.users, guard.users.by_name["app"], options, credentials, access):
        assert SECRET not in f"{thing!r} {thing}"
    for broken in ({"access_key": "a"}, {"cluster_secret": "short"}, {"sessions_max": 0}):
        with pytest.raises(OptionError):
            AccessOptions(**broken)  # type: ignore[arg-type]
