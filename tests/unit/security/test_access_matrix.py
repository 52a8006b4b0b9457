"""The authorisation matrix: every request code at every server, from every kind of sender, about everybody's things.

`access_matrix.txt` has the expected answers, a row for each code. Here each of them is sent to a running name
server, broker and coordinator with access control on: what is refused must change nothing, what is allowed must be
carried out.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command, encode_frame
from penstock.security.policy import Kind, Need
from penstock.security.requests import needs_of
from scripts import docs_access
from scripts.docs_access import SERVERS, Row, rows
from tests.support.guarded import SECRET, caller, run
from tests.support.raw_peer import RawPeer
from tests.unit.security.access_world import World, world
from tests.unit.security.every_request import EVERY, REPLY_TOPIC, Place, R

NO_PERMISSION, NOT_SUPPORTED = int(ResponseCode.NO_PERMISSION), int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
STRANGERS = (
    None,
    {"access_key": "alice", "secret_key": "another-secret"},
    {"access_key": "nobody", "secret_key": SECRET},
    {"access_key": "off", "secret_key": SECRET},
)
# What a request that is let pass is answered where it finds nothing to do or to say. All others have to succeed.
A = ResponseCode
ALSO: dict[int, set[ResponseCode]] = {
    # No such requester, half message or parked message; a publication without handles.
    R.SEND_REPLY_MESSAGE: {A.SYSTEM_ERROR},
    R.SEND_REPLY_MESSAGE_V2: {A.SYSTEM_ERROR},
    R.END_TRANSACTION: {A.SYSTEM_ERROR},
    R.RESUME_CHECK_HALF_MESSAGE: {A.SYSTEM_ERROR},
    R.PUBLISH_STAGED: {A.INVALID_PARAMETER},
    # The message is gone with its topic, which was deleted and made again before the admin asks.
    R.VIEW_MESSAGE_BY_ID: {A.SYSTEM_ERROR},
    R.CONSUMER_SEND_MSG_BACK: {A.SYSTEM_ERROR},
    # Nothing there: no message, no offset, no pop that waits for this acknowledgement.
    R.PULL_MESSAGE: {A.PULL_NOT_FOUND},
    R.LITE_PULL_MESSAGE: {A.PULL_NOT_FOUND},
    R.PEEK_MESSAGE: {A.PULL_NOT_FOUND},
    R.QUERY_CONSUMER_OFFSET: {A.QUERY_NOT_FOUND},
    R.QUERY_MESSAGE: {A.QUERY_NOT_FOUND},
    R.ACK_MESSAGE: {A.NO_MESSAGE},
    R.CHANGE_MESSAGE_INVISIBLETIME: {A.NO_MESSAGE},
    R.BATCH_ACK_MESSAGE: {A.NO_MESSAGE},
    R.GET_KV_CONFIG: {A.QUERY_NOT_FOUND},
    R.GET_KVLIST_BY_NAMESPACE: {A.QUERY_NOT_FOUND},
    R.VIEW_BROKER_STATS_DATA: {A.SYSTEM_ERROR},
    # Nobody there: no consumer, no broker set.
    R.GET_CONSUMER_LIST_BY_GROUP: {A.SYSTEM_ERROR},
    R.GET_CONSUMER_CONNECTION_LIST: {A.CONSUMER_NOT_ONLINE},
    R.GET_CONSUMER_RUNNING_INFO: {A.SYSTEM_ERROR},
    R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: {A.SYSTEM_ERROR},
    R.CONSUME_MESSAGE_DIRECTLY: {A.SYSTEM_ERROR},
    R.EXPLAIN: {A.SUBSCRIPTION_GROUP_NOT_EXIST},
    R.BROKER_HEARTBEAT: {A.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED},
    R.BROKER_BEAT: {A.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED},
    R.CONTROLLER_ELECT_MASTER: {A.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED},
    R.CONTROLLER_ALTER_SYNC_STATE_SET: {A.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED},
    R.CONTROLLER_REGISTER_BROKER: {A.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED},
    R.CLEAN_BROKER_DATA: {A.CONTROLLER_INVALID_CLEAN_BROKER_METADATA},
}


# -- the table itself ----------------------------------------------------------------------------------------


def test_every_request_code_has_a_row_and_a_request() -> None:
    """A code without either is a decision that was not made."""
    table = {row.code: row for row in rows()}
    assert [code.name for code in RequestCode if code not in table] == []
    assert [row.name for row in table.values() if row.name != RequestCode(row.code).name] == []
    assert {code for code, row in table.items() if row.servers != ("none",)} == {int(code) for code in EVERY}
    assert len(table) == len(rows())


def test_what_a_request_needs_is_what_its_row_says() -> None:
    for row in rows():
        if row.code in EVERY:
            found = {_shown(need) for need in needs_of(EVERY[row.code](Place("orders", "billing")))}
            # The topic of a message is known only when the message was read.
            said = {need for need in row.needs if need != "signed" and not need.startswith("message:")}
            assert found == said, row.name


def _shown(need: Need) -> str:
    if need.kind is Kind.ADMIN:
        return "admin"
    actions = "|".join(need.actions)
    names = {
        "orders": "Topic:",
        REPLY_TOPIC: "Topic:",
        "billing": "Group:",
        "?": f"any {need.kind}:",
        "*": f"{need.kind}:*",
    }
    return f"{names[need.name]} {actions}"


def test_the_security_page_has_the_matrix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = docs_access.ROOT / "docs" / "operating" / "security.md"
    assert docs_access.main(["--check", str(page)]) == 0, "run: make docs-access"
    stale = tmp_path / "security.md"
    stale.write_text(
        page.read_text(encoding="utf-8").replace("| Sub on the group |", "| Get on the group |", 1), "utf-8"
    )
    assert docs_access.main(["--check", str(stale)]) == 1
    assert "make docs-access" in capsys.readouterr().err
    assert docs_access.main([str(stale)]) == 0
    assert stale.read_text(encoding="utf-8") == page.read_text(encoding="utf-8")


# -- every code at every server ------------------------------------------------------------------------------


def codes() -> list[int]:
    """Every known code, those around them, and the ends of the ranges that headers can carry."""
    known = {int(code) for code in RequestCode}
    near = {code + step for code in known for step in (-1, 1)}
    return sorted(known | near | {*range(-2, 1100), -(2**31), -(2**15), 2**15, 2**31 - 1, 3_000, 9_099})


@pytest.mark.abuse("A9")
def test_every_server_asks_who_sends_each_of_its_codes_and_has_no_other(tmp_path: Path) -> None:
    """Not signed: 16 for the codes of the rows, 3 for all others; so a handler without a row is found."""
    table = {row.code: row for row in rows()}

    async def test() -> None:
        async with world(tmp_path) as made:
            before = made.state()
            for server in SERVERS:
                peer = await RawPeer.connect(made.address(server))
                try:
                    asked = codes()
                    peer.send(
                        b"".join(
                            encode_frame(Command(code, opaque=number)) for number, code in enumerate(asked)
                        )
                    )
                    for _ in asked:
                        answer = await peer.read()
                        code = asked[answer.opaque]
                        has_it = code in table and server in table[code].servers
                        assert answer.code == (NO_PERMISSION if has_it else NOT_SUPPORTED), (server, code)
                        assert not answer.body
                finally:
                    await peer.close()
            assert made.state() == before

    run(test)


def test_every_handler_of_every_server_has_a_row(tmp_path: Path) -> None:
    """Whatever its number is: a table may have a code that no list of codes has."""
    table = {row.code: row for row in rows()}

    async def test() -> None:
        async with world(tmp_path) as made:
            found = made.tables()
            assert {name.partition(" ")[0] for name in found} == set(SERVERS)
            for name, served in found.items():
                server = name.partition(" ")[0]
                said = {code for code, row in table.items() if server in row.servers}
                assert set(served.codes) <= said, name
                if name == server:
                    assert set(served.codes) == said

    run(test)


# -- the matrix ----------------------------------------------------------------------------------------------


@pytest.mark.abuse("A9")
def test_strangers_get_nothing_and_change_nothing(tmp_path: Path) -> None:
    """No credentials, a wrong secret, an unknown user, a disabled admin: 16 for every request of every server."""

    async def test() -> None:
        async with world(tmp_path) as made:
            for keys in STRANGERS:
                async with caller(keys) as stranger:
                    before = made.state()
                    for server, row, place in _all(made):
                        answer = await made.ask(stranger, server, EVERY[row.code](place))
                        assert (answer.code, bytes(answer.body)) == (NO_PERMISSION, b""), (
                            keys,
                            server,
                            row.name,
                        )
                    assert made.state() == before, keys

    run(test)


@pytest.mark.abuse("A9")
def test_an_account_without_entries_is_good_for_nothing_but_a_signature(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path) as made:
            before = made.state()
            for server, row, place in _all(made):
                if row.needs != ("signed",):
                    await _expect(made, "carol", server, row, place, "no")
            assert made.state() == before

    run(test)


@pytest.mark.abuse("A7")
@pytest.mark.abuse("A9")
def test_users_do_to_others_what_the_matrix_says(tmp_path: Path) -> None:
    """Both users, about the other's things and the broker's; and with one name of two their own."""

    async def test() -> None:
        async with world(tmp_path) as made:
            for name, own, anothers in (
                ("alice", made.own, made.anothers),
                ("bob", made.anothers, made.own),
            ):
                before = made.state()
                for server, row in _served():
                    for place in _mixed(row, own, anothers) if row.anothers != "-" else ():
                        await _expect(made, name, server, row, place, row.anothers)
                    for place in _mixed(row, own, made.internal) if row.internal != "-" else ():
                        await _expect(made, name, server, row, place, row.internal)
                    if row.own == "no":
                        await _expect(made, name, server, row, own, row.own)
                    after = made.state()
                    assert after == before, (name, row.name, _difference(before, after))

    run(test)


@pytest.mark.abuse("A9")
def test_entries_with_a_star_reach_no_topic_of_the_broker(tmp_path: Path) -> None:
    """Waiting messages of every topic lie there, also of topics that another entry denies."""

    async def test() -> None:
        async with world(tmp_path) as made:
            before = made.state()
            for server, row in _served():
                if any(need.startswith(("Topic:", "message:")) for need in row.needs if "*" not in need):
                    for group in (made.own.group, made.internal.group):
                        await _expect(
                            made, "star", server, row, made.internal._replace(group=group), row.internal
                        )
            assert made.state() == before

    run(test)


def test_owners_and_admins_may_do_what_the_matrix_says(tmp_path: Path) -> None:
    """What is allowed is carried out: deletions last, because the others need what they delete."""

    async def test() -> None:
        async with world(tmp_path) as made:
            deletions_last = sorted(_served(), key=lambda one: "DELETE" in one[1].name)
            for server, row in deletions_last:
                if row.own == "yes":
                    made.prepare()
                    await _expect(made, "alice", server, row, made.own, "yes")
            for server, row in deletions_last:
                made.prepare()
                await _expect(made, "admin", server, row, made.own, row.admin)
                if row.admin_internal != "-":
                    await _expect(made, "admin", server, row, made.internal, row.admin_internal)

    run(test)


def _served() -> list[tuple[str, Row]]:
    return [(server, row) for row in rows() for server in row.servers if server != "none"]


def _all(made: World) -> Iterable[tuple[str, Row, Place]]:
    return ((server, row, made.own) for server, row in _served())


def _mixed(row: Row, own: Place, foreign: Place) -> list[Place]:
    """A foreign topic with an own group, an own topic with a foreign group: whichever of them the request needs."""
    found = [foreign]
    if any(need.startswith(("Topic:", "message:")) for need in row.needs):
        found.append(Place(foreign.topic, own.group, foreign.position))
    if any(need.startswith("Group:") for need in row.needs):
        found.append(Place(own.topic, foreign.group, own.position))
    return found


async def _expect(made: World, name: str, server: str, row: Row, place: Place, wanted: str) -> None:
    answer = await made.ask(made.clients[name], server, EVERY[row.code](place))
    what = (name, server, row.name, place, answer.code, answer.remark)
    if wanted == "no":
        assert (answer.code, bytes(answer.body)) == (NO_PERMISSION, b""), what
    elif wanted == "yes":
        assert answer.code in {0, *ALSO.get(row.code, ())}, what
    else:
        assert answer.code == int(wanted), what


def _difference(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return [name for name in before if before[name] != after[name]]
