"""The pages about broker, name server and clients: tables are what the code says, examples run."""

import asyncio
import re
from dataclasses import fields
from pathlib import Path

import pytest

import penstock
from penstock import testing
from penstock.broker.config_keys import CHANGEABLE
from penstock.broker.options import BrokerOptions
from penstock.client.allocation import STRATEGIES
from penstock.client.options import ConsumerOptions, ProducerOptions
from penstock.nameserver import runtime_config
from penstock.nameserver.options import NameServerOptions
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.remoting import RemotingOptions, TlsMode, TlsOptions
from penstock.store import StoreOptions
from penstock.testing import EmbeddedBroker

DOCS = Path(__file__).resolve().parents[2] / "docs"
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "s": 1_000, "min": 60_000}


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def section_of(name: str, heading: str) -> str:
    return text_of(name).partition(f"## {heading}\n")[2].partition("\n## ")[0]


def codes_shown(page: str) -> set[int]:
    """Numbers in the first column of the table of requests."""
    rows = re.findall(r"^\| ([\d, ]+) \|", section_of(page, "Requests"), re.M)
    return {int(code) for row in rows for code in row.split(",")}


@pytest.fixture(scope="module")
def answered() -> dict[str, set[int]]:
    """Codes that have a handler, of a broker and a name server that run."""

    async def look() -> dict[str, set[int]]:
        embedded = EmbeddedBroker()
        await embedded.start()
        try:
            assert embedded.broker is not None
            tables = {
                "broker.md": embedded.broker.table,
                "nameserver.md": embedded.nameserver.server.table,
            }
            return {page: set(table.codes) for page, table in tables.items()}
        finally:
            await embedded.stop()

    return asyncio.run(look())


@pytest.mark.parametrize(("page", "sent"), [("broker.md", set()), ("nameserver.md", {905})])
def test_requests_on_the_page_are_those_that_are_answered(
    answered: dict[str, set[int]], page: str, sent: set[int]
) -> None:
    assert codes_shown(page) - sent == answered[page]


def test_requests_on_the_page_are_known_by_their_names() -> None:
    """A row that names its requests names them right."""
    for page in ("broker.md", "nameserver.md"):
        for codes, names in re.findall(
            r"^\| ([\d, ]+) \| ([A-Z_0-9]+(?:, [A-Z_0-9]+)*)(?:,| \|)", section_of(page, "Requests"), re.M
        ):
            listed = [name for name in names.split(", ") if not name.startswith("_")]
            known = {RequestCode(int(code)).name for code in codes.split(",")}
            assert set(listed) <= known, codes


def test_codes_of_refusals_exist() -> None:
    known = {int(code) for code in ResponseCode}
    for heading in ("Sends", "Pulls"):
        rows = re.findall(r"^\| [^|]*(?:\\\|[^|]*)* \| ([\d, ]+) \|$", section_of("broker.md", heading), re.M)
        assert len(rows) > 5
        assert {int(code) for row in rows for code in row.split(",")} <= known


DEFAULTS = {
    field.name: field.default
    for options in (
        StoreOptions,
        RemotingOptions,
        NameServerOptions,
        BrokerOptions,
        ProducerOptions,
        ConsumerOptions,
    )
    for field in fields(options)
}


def test_limits_on_the_pages_are_the_defaults() -> None:
    """An option in backticks with a number behind it, as in `long_polls_max` 50000 or `batch_bytes` (256 KiB)."""
    shown = [
        (page, name, int(number) * UNITS[unit])
        for page in (
            "broker.md",
            "clients.md",
            "guarantees.md",
            "journey-of-a-message.md",
            "formats/frame.md",
        )
        for name, number, unit in re.findall(
            r"`(?:\w+\.)?(\w+_\w+)` \(?(\d+)(?: (KiB|MiB|s|min))?\b", text_of(page)
        )
        if name in DEFAULTS
    ]
    assert len(shown) > 30
    assert [(page, name, number) for page, name, number in shown if DEFAULTS[name] != number] == []


def test_settings_that_may_change_are_all_named() -> None:
    named = set(re.findall(r"`([a-z]+[A-Z]\w+)`", section_of("broker.md", "Settings at run time")))
    assert named == set(CHANGEABLE)


def test_settings_of_a_name_server_that_may_change_are_all_named() -> None:
    paragraph = section_of("nameserver.md", "Requests").partition("Run-time configuration (318)")[2]
    named = set(re.findall(r"`([a-z]+[A-Z]\w+)`", paragraph.partition("\n\n")[0]))
    assert named == set(runtime_config.CHANGEABLE)


def test_modes_of_tls_are_explained() -> None:
    rows = re.findall(r"^\| `(\w+)`( \(default\))? \|", section_of("operating/security.md", "TLS"), re.M)
    default = TlsOptions().mode
    assert rows == [(mode.value, " (default)" if mode is default else "") for mode in TlsMode]


def test_names_on_the_client_page_are_public() -> None:
    page = text_of("clients.md")
    for name in set(re.findall(r"\bpenstock\.([A-Z]\w+)", page)):
        assert name in penstock.__all__
    for name in STRATEGIES:
        assert f"`{name}`" in page
    options = {field.name for kind in (ProducerOptions, ConsumerOptions) for field in fields(kind)}
    for row in re.findall(
        r"^\| (`[a-z_`, ]+`) \|", page.partition("### Many messages")[2].partition("## ")[0], re.M
    ):
        assert set(re.findall(r"`(\w+)`", row)) <= options


def test_every_example_of_the_client_page_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", text_of("clients.md"), re.M | re.S)
    assert len(blocks) >= 9
    with testing.broker() as address:
        for number, block in enumerate(blocks, 1):
            code = compile(block.replace("127.0.0.1:9876", address), f"clients.md, example {number}", "exec")
            exec(code, {"__name__": "__main__"})  # noqa: S102 - the page's own code
