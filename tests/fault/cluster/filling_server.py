"""`penstock` on a disk that is full while the file exists that the first argument names; the rest is its own."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.cli.main import main
from penstock.runtime import Runtime
from penstock.testing.filling_disk import FillingDisk

if __name__ == "__main__":
    mark = Path(sys.argv.pop(1))
    Runtime.system = staticmethod(lambda: Runtime(disk=FillingDisk(mark)))  # type: ignore[method-assign]
    main()
