"""Hot leaf modules: plain Python files that Cython compiles in its pure-Python mode.

Each module runs in two forms with the same results: compiled (a shared object beside the source) and pure
(the source itself). The interpreter prefers the shared object; `PENSTOCK_PURE=1` makes this package load the
sources instead, which is how the test suite runs both. `form()` says which one is live; start-up logs, store
statistics and benchmarks report it, because figures of the pure form are not figures of the product.
`PENSTOCK_HOT_MODULES` names a folder of shared objects that are compiled in another way: `make asan` does.

Rule: leaves over buffers and integers. Nothing here imports another room, waits on a lock or logs.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

MODULES = (
    "mapped",
    "checks",
    "queues",
    "records",
    "dispatch",
    "reads",
    "index",
    "flush",
    "text",
    "headers",
    "frames",
    "sends",
    "decode",
    "rows",
    "buffers",
    "pairs",
    "columns",
    "staged",
    "encode",
)


class _SourceFinder:
    """Finds the modules of this package as sources, although compiled ones lie beside them."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package, _, leaf = name.rpartition(".")
        if package != __name__ or leaf not in MODULES:
            return None
        return importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{leaf}.py"))


if os.environ.get("PENSTOCK_PURE") == "1":
    sys.meta_path.insert(0, _SourceFinder)
elif os.environ.get("PENSTOCK_HOT_MODULES"):
    __path__.insert(0, os.environ["PENSTOCK_HOT_MODULES"])


def form() -> str:
    """ "compiled" when every hot module is a shared object of the same folder, "pure" when every one is source, else
    "mixed"."""
    files = [Path(str(importlib.import_module(f"{__name__}.{leaf}").__file__)) for leaf in MODULES]
    if len({file.parent for file in files}) > 1:
        return "mixed"
    compiled = sum(file.suffix != ".py" for file in files)
    return {len(MODULES): "compiled", 0: "pure"}.get(compiled, "mixed")
