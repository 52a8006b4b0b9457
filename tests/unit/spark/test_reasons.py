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
