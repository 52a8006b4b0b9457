"""Writes the list of components of a release: CycloneDX 1.5, JSON. `sbom.py FILE`; run by `make sbom`.

Versions and hashes are those of requirements.lock, names, licences and dependencies those that the installed packages
say of themselves. What the core needs is `required`, what an extra needs `optional`; tools of development and of the
build are `excluded`, as they are not delivered. The same commit gives the same bytes: the time is the commit's (or
SOURCE_DATE_EPOCH), the serial number is made of the content.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.pin_constraints import ENVIRONMENTS, LOCK, ROOT

SPEC_VERSION = "1.5"
# Extras that are not delivered.
TOOLS = frozenset(("dev", "release"))
_LICENSE_MAX = 100


def locked(text: str) -> dict[str, tuple[str, list[str]]]:
    """Version and hashes of each package in a lock file."""
    found: dict[str, tuple[str, list[str]]] = {}
    name = ""
    for line in text.splitlines():
        if pin := re.match(r"([a-z0-9-]+)==([^\s;]+)", line):
            name = pin[1]
            found[name] = (pin[2], [])
        elif digest := re.search(r"--hash=sha256:([0-9a-f]{64})", line):
            found[name][1].append(digest[1])
    return found


Needs = dict[str, set[str]]


def wanted(requirements: Iterable[str], extras: Iterable[str], pins: Iterable[str]) -> Needs:
    """The locked packages that requirements name on any supported platform, with the extras asked of each."""
    found: Needs = {}
    for need in map(Requirement, requirements):
        name = canonicalize_name(need.name)
        used = need.marker is None or any(
            need.marker.evaluate({**environment, "extra": extra})
            for environment in ENVIRONMENTS
            for extra in ("", *extras)
        )
        if used and name in pins:
            found.setdefault(name, set()).update(need.extras)
    return found


def needs_of(name: str, extras: Iterable[str], pins: Iterable[str]) -> Needs:
    """What an installed package needs."""
    try:
        return wanted(requires(name) or (), extras, pins)
    except PackageNotFoundError:  # of another platform
        return {}


def closure(first: Needs, pins: Iterable[str]) -> Needs:
    """The packages, and all that they need."""
    found: Needs = {}
    waiting = list(first.items())
    while waiting:
        name, extras = waiting.pop()
        if name not in found or not extras <= found[name]:
            found.setdefault(name, set()).update(extras)
            waiting += needs_of(name, found[name], pins).items()
    return found


def licenses(about: PackageMetadata) -> list[dict[str, Any]]:
    """As the package says it: an SPDX expression, else the names of its classifiers, else its own words if few."""
    if "License-Expression" in about:
        return [{"expression": about["License-Expression"]}]
    named = [
        text.rpartition(" :: ")[2]
        for text in about.get_all("Classifier") or ()
        if text.startswith("License :: ") and not text.endswith("OSI Approved")
    ]
    words = about["License"].strip() if "License" in about else ""
    if not named and words and "\n" not in words and len(words) <= _LICENSE_MAX:
        named = [words]
    return [{"license": {"name": name}} for name in dict.fromkeys(named)]


def component(name: str, version: str, digests: list[str], scope: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{version}"
    made: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "scope": scope,
        # One for each file of the release: wheels of all platforms and the source archive.
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in digests],
        "purl": purl,
    }
    try:
        about = metadata(name)
    except PackageNotFoundError:
        return made
    if "Summary" in about:
        made["description"] = about["Summary"]
    if found := licenses(about):
        made["licenses"] = found
    return made


def bom(project: dict[str, Any], lock: str, time: datetime) -> dict[str, Any]:
    """The document. `project` is the table of that name in pyproject.toml."""
    pins = locked(lock)
    refs = {name: f"pkg:pypi/{name}@{version}" for name, (version, _) in pins.items()}
    own = f"pkg:pypi/{project['name']}@{project['version']}"
    extras: dict[str, list[str]] = project["optional-dependencies"]
    optional = [text for extra, texts in extras.items() if extra not in TOOLS for text in texts]
    required = closure(wanted(project["dependencies"], (), pins), pins)
    direct = wanted([*project["dependencies"], *optional], (), pins)
    delivered = closure(direct, pins)
    components = [
        component(
            name,
            version,
            digests,
            "required" if name in required else "optional" if name in delivered else "excluded",
        )
        for name, (version, digests) in sorted(pins.items())
    ]
    dependencies = [{"ref": own, "dependsOn": sorted(refs[name] for name in direct)}]
    for name in sorted(pins):
        needs = needs_of(name, delivered.get(name, ()), pins)
        dependencies.append({"ref": refs[name], "dependsOn": sorted(refs[need] for need in needs)})
    body: dict[str, Any] = {
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": project["name"],
                "version": project["version"],
                "description": project["description"],
                "licenses": [{"license": {"id": project["license"]}}],
                "purl": own,
            },
        },
        "components": components,
        "dependencies": dependencies,
    }
    serial = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(body, sort_keys=True))
    head = {"bomFormat": "CycloneDX", "specVersion": SPEC_VERSION, "serialNumber": f"urn:uuid:{serial}"}
    return {**head, "version": 1, **body}


def commit_time() -> datetime:
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    if not seconds:
        command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
        seconds = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return datetime.fromtimestamp(int(seconds), UTC)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: sbom.py FILE", file=sys.stderr)
        return 2
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    made = bom(project, LOCK.read_text(encoding="utf-8"), commit_time())
    path = Path(arguments[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{path}: {len(made['components'])} components")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
