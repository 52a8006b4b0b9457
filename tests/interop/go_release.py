"""The Go client as a driver: built from `go/`, whose go.mod and go.sum pin the release, and cached.

As in `java_release.py`: a binary is used again only if its sources are the same, and a module proxy out of reach is told
apart from every other failure, because only the first may skip tests.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.interop.java_errors import JavaStoreError, RegistryOutOfReach
from tests.interop.java_release import CACHE_DIR

GO_CLIENT = "go-2.1.2"
"""The pinned release of github.com/apache/rocketmq-client-go/v2; go.mod names the same."""

_GO_DIR = Path(__file__).resolve().parent / "go"
_BUILD_TIMEOUT_S = 600
_OUT_OF_REACH = re.compile(
    r"dial tcp|no such host|i/o timeout|connection (?:refused|reset)|network is unreachable|proxyconnect|"
    r"TLS handshake|403 Forbidden|module lookup disabled"
)


def missing_go() -> str | None:
    """None if Go is here, else what to do."""
    if shutil.which("go") is None:
        return "no go on the path: install Go 1.21 or newer"
    return None


def prepare_driver() -> Path:
    """The driver's binary, built if its sources changed."""
    home = CACHE_DIR / GO_CLIENT
    home.mkdir(parents=True, exist_ok=True)
    (CACHE_DIR / ".gitignore").write_text("*\n", encoding="utf-8")
    sources = sorted(path for path in _GO_DIR.iterdir() if path.suffix in (".go", ".mod", ".sum"))
    fingerprint = hashlib.sha256(
        b"".join(path.name.encode() + path.read_bytes() for path in sources)
    ).hexdigest()
    binary, stamp = home / "driver", home / "driver.stamp"
    with open(home / "prepare.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (binary.is_file() and stamp.is_file() and stamp.read_text() == fingerprint):
            _build(binary)
            stamp.write_text(fingerprint)
    return binary


def _build(binary: Path) -> None:
    done = subprocess.run(
        ["go", "build", "-mod=readonly", "-o", str(binary), "."],
        cwd=_GO_DIR,
        env={**os.environ, "GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "local"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        last = done.stderr.strip()[-1500:]
        if _OUT_OF_REACH.search(done.stderr):
            raise RegistryOutOfReach(f"Go cannot reach its module proxy, connect and try again: {last}")
        raise JavaStoreError(f"go build ended with {done.returncode}:\n{last}")
