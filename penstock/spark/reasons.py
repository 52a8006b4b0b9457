"""Why Spark failed, in a line: the sentence that matters out of a JVM's report of a Python worker's traceback.

Rules: Penstock's own error is the reason if there is one, however deep it sits; else the innermost Python error;
else Spark's own message without its stack, with what caused it where that is another sentence ("Task not
serializable" alone helps nobody). Text only; runs on the driver.
"""

from __future__ import annotations

import re

LENGTH_MAX = 600
_PYTHON_ERROR = re.compile(r"^\s*((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*): (.+)$", re.M)
_OURS = re.compile(r"^\s*penstock\.(?:errors|[\w.]+)\.(\w+): (.+)$", re.M)
# A stack, or the plan of a query, which names every column and not the mistake.
_STACK = re.compile(r"\n\s*(?:at [\w.$]+\(|=== |JVM stacktrace:|Driver stacktrace:)|;?\n(?:'[A-Z]|\+- )")
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
    said = _line(_STACK.split(text, maxsplit=1)[0])
    cause = _root_cause(error)
    is_news = cause and (cause.partition(": ")[2] or cause) not in said
    return _shortened(f"{said} ({cause})" if is_news else said)


def _root_cause(error: BaseException | str) -> str:
    """Class and message of the JVM's innermost exception, as PySpark keeps them; nothing where there is only one."""
    inner = error
    while (cause := getattr(inner, "_cause", None)) is not None:
        inner = cause
    if inner is error:
        return ""
    name, _, said = _line(str(getattr(inner, "_stackTrace", "")).partition("\n")[0]).partition(": ")
    name = name.rpartition(".")[2]
    return f"{name}: {said}" if said else name


def _line(text: str) -> str:
    return " ".join(text.split())


def _shortened(text: str) -> str:
    line = _line(text)
    return line if len(line) <= LENGTH_MAX else line[: LENGTH_MAX - 4] + " ..."
