"""The coordinator's page is held to the code: requests, answers, limits, times."""

import re
from pathlib import Path

from penstock.coordinator.balancing_part import BalancingPart
from penstock.coordinator.options import CoordinatorOptions
from penstock.coordinator.server import Coordinator
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.runtime import Runtime
from penstock.testing.metadata import MemoryEnsemble

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "coordinator" / "README.md").read_text("utf-8")
REQUESTS = PAGE.partition("## Requests\n")[2].partition("\n## ")[0]
ROW = re.compile(r"^\| ([\d, ]+) \| ([A-Z_0-9, ]+?)(?:, of [^|]*)? \| ([\d, ]*) ?\|$", re.M)


def numbers(text: str) -> set[int]:
    return {int(number) for number in re.findall(r"\d+", text)}


def test_the_requests_on_the_page_are_those_that_are_answered() -> None:
    server = Coordinator(
        CoordinatorOptions(port=0),
        MemoryEnsemble().client(),
        runtime=Runtime.system(),
        parts=(BalancingPart,),
    )
    rows = ROW.findall(REQUESTS)
    assert set().union(*(numbers(codes) for codes, _, _ in rows)) == set(server.table.codes)
    for codes, names, answers in rows:
        assert {RequestCode(code).name for code in numbers(codes)} == set(names.split(", "))
        assert numbers(answers) <= {int(code) for code in ResponseCode}


def test_numbers_on_the_page_are_the_defaults() -> None:
    options = CoordinatorOptions()
    shown = re.findall(r"`([a-z_]+)`,? \(?(\d+)( s)?\b", PAGE)
    assert len(shown) >= 6
    for name, number, unit in shown:
        assert getattr(options, name) == int(number) * (1_000 if unit else 1), name
    for kind, seconds in re.findall(r"(consumers|producers|brokers) \((\d+) s\)", PAGE):
        assert getattr(options, f"{kind[:-1]}_timeout_ms") == int(seconds) * 1_000
