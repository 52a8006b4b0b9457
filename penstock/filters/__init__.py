"""SQL92 filters over the properties of messages: an expression is parsed once, then asked of many messages.

    compile_expression("price > 5 and region in ('north', 'south')").matches({"price": "7", "region": "north"})

Rules: the language, its types and its null rules are RocketMQ's, held to its own classes by a table of answers
(`tests/unit/filters`). An expression becomes a tree, then closures; no text ever becomes code, no pattern comes from
a user, and size, depth and lists are limited. What cannot be compared makes a message that does not match, never an
error. Owned by nobody: everything here is a value.
"""

from penstock.filters.compiling import Expression, compile_expression
from penstock.filters.lexer import EXPRESSION_SIZE_MAX
from penstock.filters.parser import CONTAINED_MAX, DEPTH_MAX, LIST_MAX, NODES_MAX

__all__ = [
    "CONTAINED_MAX",
    "DEPTH_MAX",
    "EXPRESSION_SIZE_MAX",
    "LIST_MAX",
    "NODES_MAX",
    "Expression",
    "compile_expression",
]
