"""What a process of Spark's has loaded, it keeps: its garbage collector need not look at it again.

Spark's Python processes, those that plan as those that read, serve one request after the other, and collect garbage
after each. That goes through every object of the process, tens of milliseconds of a core that has rows to read.
"""

from __future__ import annotations

import gc
import sys

_is_settled = False


def settle() -> None:
    """Call it once the modules that are needed are loaded. Does something only in a process of Spark's, and once."""
    global _is_settled  # noqa: PLW0603 - it is a property of the process
    if not _is_settled and _is_sparks():
        _is_settled = True
        gc.freeze()


def _is_sparks() -> bool:
    """Whether Spark runs this process for its Python code, and not a user who has a program of his own."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name: str = getattr(spec, "name", "")
    return name == "pyspark.daemon" or (name.startswith("pyspark.") and ".worker" in name)
