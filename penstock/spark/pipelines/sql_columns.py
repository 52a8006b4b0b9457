"""Which columns of which topic a query needs: so that the others are neither sent nor decoded.

Spark tells a Python source nothing of that. So the query is planned once over stand-ins, tables without rows that
have the same columns, and the optimised plan is looked at: above each table there is, past filters, a projection or
an aggregation that names what it wants, or the plan wants everything.

Rule: this only ever makes a query faster. Whatever is not understood, another plan, another Spark, a statement that
is no plain query, means all columns. Runs on the driver; looks at Spark's plans through its JVM gateway.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from penstock.spark.schema import COLUMNS, message_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOG = logging.getLogger(__name__)
MARK = "__topic="
# What a statement is that only reads, by the name of the root of its parsed plan. Others run when they are planned.
_QUERIES = frozenset(
    (
        "Aggregate",
        "Distinct",
        "Except",
        "Filter",
        "GlobalLimit",
        "Intersect",
        "Join",
        "LocalLimit",
        "Offset",
        "Project",
        "Sort",
        "SubqueryAlias",
        "Union",
        "UnresolvedHaving",
        "UnresolvedRelation",
        "UnresolvedWith",
    )
)
Plan = Callable[[str], "DataFrame"]


def stand_in(spark: SparkSession, topic: str) -> DataFrame:
    """A table with the columns of a topic and no rows. An extra column that nobody can select names the topic.

    All columns may be null here: those that a query needs not become null, and Spark has no need of a column whose
    values it counts when none can be null.
    """
    from pyspark.sql import types

    columns = [types.StructField(field.name, field.dataType) for field in message_schema().fields]
    marked = types.StructType([*columns, types.StructField(MARK + topic, types.BooleanType())])
    return spark.createDataFrame(spark.sparkContext.emptyRDD(), marked).select(*COLUMNS)


def columns_needed(spark: SparkSession, text: str, plan: Plan) -> dict[str, list[str]]:
    """Columns by topic; a topic that is not named needs all. `plan` makes a frame of the query over stand-ins."""
    try:
        parsed = spark._jsparkSession.sessionState().sqlParser().parsePlan(text)
        if parsed.nodeName() not in _QUERIES:
            return {}
    except Exception:
        # A mistake in the query is told when it is really run.
        return {}
    frame = plan(text)
    try:
        return _read_plan(frame._jdf.queryExecution().optimizedPlan())
    except Exception as error:
        _LOG.debug("columns of the query are not known: %s", error)
        return {}


def _read_plan(root: Any) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    everything: set[str] = set()
    for plan in (root, *_items(root.subqueriesAll())):
        for topic, names in _leaves(plan, None):
            if names is None:
                everything.add(topic)
            else:
                found.setdefault(topic, set()).update(names)
    return {topic: sorted(names & set(COLUMNS)) for topic, names in found.items() if topic not in everything}


def _leaves(node: Any, wanted: frozenset[str] | None) -> Iterator[tuple[str, frozenset[str] | None]]:
    """Topics below a node with the names that are wanted of them. `wanted` is what the nodes above name of this
    one's output, None if that is all of it."""
    children = _items(node.children())
    if not children:
        topic = next((name[len(MARK) :] for name in _names(node.output()) if name.startswith(MARK)), None)
        if topic is not None:
            yield topic, wanted
        return
    kind = node.nodeName()
    if kind in ("Project", "Aggregate"):
        wanted = frozenset(_names(node.references().toSeq()))
    elif kind == "Filter" and wanted is not None:
        wanted |= frozenset(_names(node.references().toSeq()))
    else:
        wanted = None
    for child in children:
        yield from _leaves(child, wanted)


def _names(attributes: Any) -> list[str]:
    return [attribute.name() for attribute in _items(attributes)]


def _items(sequence: Any) -> list[Any]:
    """A Scala sequence as a list."""
    return [sequence.apply(number) for number in range(sequence.length())]
