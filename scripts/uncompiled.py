"""The tests that run a second time, with the hot modules uncompiled.

    python -m scripts.uncompiled     their files, a line each

Those are the tests of the hot modules and of the modules that import one directly, golden bytes, and corpora. All
others see hot modules only through those, whose behaviour is the same in both forms if these tests pass in both.
"""

from __future__ import annotations

import functools
import sys

from scripts import imports
from scripts.history import ROOT
from scripts.imports import test_files

HOT = "penstock._hot"
FOLDERS = ("tests/unit/", "tests/compat/", "tests/property/")
ALWAYS = (
    "tests/compat/test_golden_",
    "tests/unit/store/",
    "tests/unit/protocol/",
    "tests/property/test_codec",
    "tests/property/test_store",
)
CORPORA = ("tests/abuse/test_send_path.py", "tests/unit/broker/test_fast_path.py")
# These import hot modules to assemble a server or to say which form is loaded.
ASSEMBLY = ("penstock.broker.broker", "penstock.cli.")


@functools.cache
def files() -> frozenset[str]:
    """The test files of the uncompiled form."""
    import grimp

    graph = grimp.build_graph("penstock", cache_dir=str(ROOT / "build" / "grimp"))
    hot = {name for name in graph.modules if name == HOT or name.startswith(f"{HOT}.")}
    importers = {name for module in hot for name in graph.find_modules_that_directly_import(module)}
    of_interest = hot | {name for name in importers if not name.startswith(ASSEMBLY)}
    return frozenset(
        file
        for file in test_files()
        if file in CORPORA
        or file.startswith(ALWAYS)
        or (file.startswith(FOLDERS) and imports.direct(file) & of_interest)
    )


if __name__ == "__main__":
    sys.stdout.write("".join(f"{file}\n" for file in sorted(files())))
