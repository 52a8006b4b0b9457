"""Of a long report, the sentence that matters."""

import pytest

from penstock.spark.reasons import LENGTH_MAX, reason_of

WORKER = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure: Task 0 in \
stage 3.0 failed 2 times, most recent failure: Lost task 0.1: org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "pyspark/worker.py", line 1, in main
    process()
  File "penstock/spark/live.py", line 99, in read
    raise GapError(...)
{error}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:5)
\tat java.base/java.lang.Thread.run(Thread.java:840)

Driver stacktrace: SQLSTATE: XXKST
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            WORKER.format(error="penstock.errors.OptionError: no such topic; name another"),
            "no such topic; name another",
        ),
        (WORKER.format(error="ValueError: bad row 7"), "ValueError: bad row 7"),
        (WORKER.format(error="my.package.OddError: x: y"), "OddError: x: y"),
        (
            "[PARSE_SYNTAX_ERROR] Syntax error at 'frm'.\n== SQL ==\nselect 1\n=== x",
            "[PARSE_SYNTAX_ERROR] Syntax error at 'frm'. == SQL == select 1",
        ),
        (
            "A column with name `no` cannot be resolved. SQLSTATE: 42703; line 1 pos 7;\n"
            "'Project ['no, body#7]\n+- ~SubqueryAlias o\n   +- View (`o`, [topic#0])\n",
            "A column with name `no` cannot be resolved. SQLSTATE: 42703; line 1 pos 7",
        ),
        ("plain", "plain"),
        ("", ""),
    ],
)
def test_the_reason_is_found(text: str, reason: str) -> None:
    assert reason_of(text) == reason


def test_our_own_error_counts_also_when_it_was_wrapped() -> None:
    inner = WORKER.format(error="penstock.errors.ConnectError: no broker answers; start it")
    outer = f"py4j.protocol.Py4JJavaError: {inner}\nTraceback (most recent call last):\nRuntimeError: stopped"
    assert reason_of(RuntimeError(outer)) == "no broker answers; start it"


def test_a_book_becomes_a_line() -> None:
    found = reason_of("word " * 10_000)
    assert len(found) <= LENGTH_MAX
    assert "\n" not in found


class Captured(Exception):
    """As PySpark hands on an exception of the JVM: its message, its stack, its cause."""

    def __init__(self, said: str, stack: str, cause: "Captured | None" = None) -> None:
        super().__init__(said)
        self._stackTrace, self._cause = stack, cause


def test_a_cause_is_told_that_the_message_leaves_out() -> None:
    root = Captured(
        "org.x.Lock\nSerialization stack:",
        "java.io.NotSerializableException: org.x.Lock\n\tat java.io.X(Y.java)",
    )
    middle = Captured("Task not serializable", "org.apache.spark.SparkException: Task not serializable", root)
    outer = Captured("Task not serializable\n=== Streaming Query ===\nid = 1", "", middle)
    assert reason_of(outer) == "Task not serializable (NotSerializableException: org.x.Lock)"
    # What is said already is not said twice, and a cause without words adds nothing.
    assert reason_of(Captured("it failed: no disk", "", Captured("", "java.io.IOException: no disk"))) == (
        "it failed: no disk"
    )
    assert reason_of(Captured("it failed", "", Captured("", "java.lang.NullPointerException"))) == (
        "it failed (NullPointerException)"
    )
