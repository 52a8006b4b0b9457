"""examples/spark_counts.py, in the session of the tests."""

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "spark_counts.py"


def test_a_stream_counts_by_tag_and_resumes(spark, node, tmp_path, capsys):
    """Each count goes on where the last run ended."""
    count = runpy.run_path(str(EXAMPLE))["count"]
    topic = node.topic("counted")
    node.send(topic, [{"body": b"order", "tag": tag} for tag in ("new", "new", "paid")])
    count(spark, node.address, topic, str(tmp_path))
    first = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[2] for line in first] == ["new: 2", "paid: 1"]
    node.send(topic, [{"body": b"order", "tag": "paid"}])
    count(spark, node.address, topic, str(tmp_path))
    assert [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()] == ["paid: 2"]
