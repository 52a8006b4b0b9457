"""Writes constraints.txt, one pinned version of everything, and two lock files with hashes.

requirements.lock is what `make setup` installs, release.lock what only the extra `release` adds.

Run by `make constraints`. pip resolves the project with all its extras and the build tools in one go, without
installing anything; the pins are what it would have installed. The hashes are those that the package index publishes
for every wheel and source archive of a pinned release, so the lock holds for each platform and version of Python that
the release supports. No file says where a package comes from.

`pin_constraints.py --hashes-only` keeps the versions and reads the hashes again.
"""

import importlib
import json
import os
import re
import ssl
import subprocess
import sys
import tempfile
import tomllib
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS, LOCK, RELEASE_LOCK = (
    ROOT / name for name in ("constraints.txt", "requirements.lock", "release.lock")
)
CONSTRAINTS_HEADER = """\
# One version of everything that Penstock, its build and its extras install, directly or not.
# For `pip install -c constraints.txt`; a constraint installs nothing by itself.
# Written by `make constraints` (scripts/pin_constraints.py), which resolves all extras together with pip.
# Do not edit by hand: change the ranges in pyproject.toml and run it again. No addresses belong here.
"""
LOCK_HEADER = """\
# Releases of constraints.txt with the SHA-256 of their files: wheels of all platforms and the source archive.
# `make` installs with `pip install --require-hashes --no-deps -r {name}`: pip refuses any other file.
# Written by `make constraints` (scripts/pin_constraints.py). Do not edit by hand. No addresses belong here.
"""
SHA256 = re.compile(r"sha256=([0-9a-f]{64})")
# Where the lock must be complete: a dependency that only one of these needs has to be pinned as well.
ENVIRONMENTS = tuple(
    {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": system,
        "platform_version": "",
        "python_full_version": f"{version}.0",
        "python_version": version,
        "implementation_version": f"{version}.0",
        "sys_platform": platform,
    }
    for version in ("3.11", "3.12", "3.13", "3.14")
    for system, platform, machine in (
        ("Linux", "linux", "x86_64"),
        ("Linux", "linux", "aarch64"),
        ("Darwin", "darwin", "arm64"),
    )
)


# -- versions ------------------------------------------------------------------------------------------------


def wanted_requirements(left_out: str = "") -> list[str]:
    """Every requirement that pyproject.toml names, of the build, of the core and of each extra but one."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = config["project"]
    extras = [
        requirement
        for extra, group in project["optional-dependencies"].items()
        if extra != left_out
        for requirement in group
    ]
    return [*config["build-system"]["requires"], *project["dependencies"], *extras]


def resolve(requirements: list[str]) -> dict[str, str]:
    """Versions by name, as pip would install them into an empty environment."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        subprocess.run([*command, "--report", str(report), *requirements], check=True)
        installed = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {canonicalize_name(item["metadata"]["name"]): item["metadata"]["version"] for item in installed}


def read_pins(path: Path = CONSTRAINTS) -> dict[str, str]:
    """The versions of constraints.txt, by name."""
    lines = path.read_text(encoding="utf-8").splitlines()
    pairs = (line.partition("==") for line in lines if line and not line.startswith("#"))
    return {name: version for name, _, version in pairs}


def markers(requirements: list[str]) -> dict[str, str]:
    """The platforms of packages that pyproject.toml asks for on some platforms only."""
    parsed = [Requirement(requirement) for requirement in requirements]
    return {canonicalize_name(one.name): str(one.marker) for one in parsed if one.marker is not None}


def missing(pins: dict[str, str]) -> list[str]:
    """What an installed package needs on a supported platform and no pin provides: `--no-deps` would leave it out."""
    found = set()
    for name in pins:
        try:
            needs = [Requirement(text) for text in requires(name) or ()]
        except PackageNotFoundError:
            continue
        for need in needs:
            applies = need.marker is None or any(
                need.marker.evaluate({**environment, "extra": ""}) for environment in ENVIRONMENTS
            )
            if applies and canonicalize_name(need.name) not in pins:
                found.add(f"{name} needs {need}")
    return sorted(found)


# -- hashes --------------------------------------------------------------------------------------------------


class _Links(HTMLParser):
    """File names and the fragments of their links, from an index page (PEP 503)."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            parts = urllib.parse.urlsplit(dict(attributes).get("href") or "")
            self.found.append((urllib.parse.unquote(parts.path.rpartition("/")[2]), parts.fragment))


def _default_index() -> str:
    """The index of a pip that is configured with none."""
    return str(importlib.import_module("pip._internal.models.index").PyPI.simple_url)


def index_page(name: str) -> str:
    """What the index that pip is configured with says of a package."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    configured = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    index = os.environ.get("PIP_INDEX_URL") or configured or _default_index()
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    request = urllib.request.Request(f"{index.rstrip('/')}/{name}/", headers={"Accept": "text/html"})
    with urllib.request.urlopen(request, timeout=60, context=context) as answer:
        return bytes(answer.read()).decode()


def hashes(page: str, name: str, version: str) -> list[str]:
    """SHA-256 of every file of a release that its page lists."""
    links = _Links()
    links.feed(page)
    found = set()
    for file, fragment in links.found:
        match = SHA256.search(fragment)
        if match is not None and _release_of(file) == (name, Version(version)):
            found.add(match[1])
    if not found:
        raise SystemExit(
            f"the index lists no file of {name} {version} with a SHA-256; choose another release"
        )
    return sorted(found)


def _release_of(file: str) -> tuple[str, Version] | None:
    try:
        if file.endswith(".whl"):
            return parse_wheel_filename(file)[:2]
        return parse_sdist_filename(file)
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None


def lock_lines(pins: dict[str, str], limits: dict[str, str]) -> Iterator[str]:
    names = sorted(pins)
    with ThreadPoolExecutor(8) as pool:
        pages = pool.map(index_page, names)
        for name, page in zip(names, pages, strict=True):
            limit = f" ; {limits[name]}" if name in limits else ""
            yield " \\\n".join(
                [f"{name}=={pins[name]}{limit}"]
                + [f"    --hash=sha256:{digest}" for digest in hashes(page, name, pins[name])]
            )


def pinned_in(lock: Path) -> set[str]:
    """The names in a lock file."""
    return set(re.findall(r"(?m)^([a-z0-9-]+)==", lock.read_text(encoding="utf-8")))


def main(arguments: list[str]) -> None:
    wanted = wanted_requirements()
    if arguments == ["--hashes-only"]:
        pins = read_pins()
        set_up = pinned_in(LOCK)
    else:
        pins = resolve(wanted)
        set_up = {*resolve(wanted_requirements(left_out="release"))}
    unpinned = missing(pins)
    if unpinned:
        raise SystemExit("\n  ".join(["these are needed on a supported platform and not pinned:", *unpinned]))
    lines = [f"{name}=={version}\n" for name, version in sorted(pins.items())]
    locks = {
        LOCK: {name: version for name, version in pins.items() if name in set_up},
        RELEASE_LOCK: {name: version for name, version in pins.items() if name not in set_up},
    }
    texts = {
        path: LOCK_HEADER.format(name=path.name)
        + "".join(f"{line}\n" for line in lock_lines(part, markers(wanted)))
        for path, part in locks.items()
    }
    CONSTRAINTS.write_text(CONSTRAINTS_HEADER + "".join(lines), encoding="utf-8")
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
        print(f"{path.name}: {len(locks[path])} pins, {text.count('--hash=')} hashes")


if __name__ == "__main__":
    main(sys.argv[1:])
