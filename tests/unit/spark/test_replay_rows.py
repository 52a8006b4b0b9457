"""What a replayed message keeps. No Spark is started."""

import pytest

pytest.importorskip("pyspark")

from penstock.client.redriving import _NOT_COPIED
from penstock.spark.pipelines.replay_rows import NOT_REPLAYED


def test_a_replayed_dead_letter_drops_all_that_a_redriven_one_drops() -> None:
    assert {str(name) for name in _NOT_COPIED} <= set(NOT_REPLAYED)
