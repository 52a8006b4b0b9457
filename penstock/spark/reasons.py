"""Why Spark failed, in a line: the sentence that matters out of a JVM's report of a Python worker's traceback.

Rules: Penstock's own error is the reason if there is one, however deep it sits; else the innermost Python error;
else Spark's own message without its stack. Text only; runs on the driver.
"""

from __future__ import annotations

import re

LENGTH_MAX = 600
_PYTHON_ERROR = re.compile(r"^\s*((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*): (.+)$", re.M)
_OURS = re.compile(r"^\s*penstock\.(?:errors|[\w.]+)\.(\w+): (.+)$", re.M)
_STACK = re.compile(r"\n\s*(?:at [\w.$]+\(|=== |JVM stacktrace:|Driver stacktrace:)")
# Python's frame lines and the JVM's own wrappers, which look like errors but say nothing.
_WRAPPERS = frozenset(
    ("File", "PythonException", "SparkException", "StreamingQueryException", "Caused by", "Py4JJavaError")
)


def reason_of(error: BaseException | str) -> str:
    """One line for people."""
    text = str(error)
    if ours := _OURS.findall(text):
        return _shortened(ours[-1][1])
    _, traceback, inside = text.rpartition("Traceback (most recent call last):")
    if traceback:
        for name, said in _PYTHON_ERROR.findall(inside):
            if name.rpartition(".")[2] not in _WRAPPERS and not name.startswith(("org.apache", "java.")):
                return _shortened(f"{name.rpartition('.')[2]}: {said}")
    return _shortened(_STACK.split(text, maxsplit=1)[0])


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LENGTH_MAX else line[: LENGTH_MAX - 4] + " ..."
