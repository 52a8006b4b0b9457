"""Writes constraints.txt: one pinned version for everything that any extra installs.

Run by `make constraints`. pip resolves the project with all its extras and the build tools in one go, without
installing anything; the pins are what it would have installed. Never writes where a package came from.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = """\
# One version of everything that Penstock, its build and its extras install, directly or not.
# Used by `make` as `pip install -c constraints.txt`; a constraint installs nothing by itself.
# Written by `make constraints` (scripts/pin_constraints.py), which resolves all extras together with pip.
# Do not edit by hand: change the ranges in pyproject.toml and run it again. No addresses belong here.
"""


def wanted_requirements() -> list[str]:
    """Every requirement that pyproject.toml names, of the build, of the core and of each extra."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = config["project"]
    extras = [requirement for group in project["optional-dependencies"].values() for requirement in group]
    return [*config["build-system"]["requires"], *project["dependencies"], *extras]


def resolve(requirements: list[str]) -> dict[str, str]:
    """Versions by name, as pip would install them into an empty environment."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        subprocess.run([*command, "--report", str(report), *requirements], check=True)
        installed = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {
        item["metadata"]["name"].lower().replace("_", "-"): item["metadata"]["version"] for item in installed
    }


def main() -> None:
    pins = resolve(wanted_requirements())
    lines = [f"{name}=={version}" for name, version in sorted(pins.items())]
    (ROOT / "constraints.txt").write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"constraints.txt: {len(lines)} pins")


if __name__ == "__main__":
    main()
