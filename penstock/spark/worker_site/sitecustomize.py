"""Run by Python when a Spark worker starts, before it looks for `pyspark.daemon`: take PySpark from its directory.

Spark puts `pyspark.zip` and `py4j-*.zip` first on the path of its workers. The zip holds no compiled files, so
every daemon (there is one per kind of worker) compiles what it imports: about a second each. Where the zip lies
inside an installed PySpark, the same modules are in that directory, compiled, and the zip can go.

Rules: only a zip beside its own directory is taken out, so the version never changes; on the machine of a
cluster without an installed PySpark nothing happens. A sitecustomize that this one hides is run as well. Knows
nothing of Penstock: it must cost nothing and import nothing. `penstock.spark.session` puts this directory on
PYTHONPATH; docs/spark/README.md says how to have it on a cluster.
"""

import os
import sys

LIBRARY = os.path.join("pyspark", "python", "lib")


def installation(path: str) -> str:
    """The directory that holds, compiled, what this zip holds; empty for any other path."""
    folder, name = os.path.split(path)
    package = "pyspark" if name == "pyspark.zip" else "py4j" if name.startswith("py4j-") else ""
    if not package or not folder.endswith(os.sep + LIBRARY):
        return ""
    root = folder[: -len(LIBRARY) - 1]
    return root if os.path.isfile(os.path.join(root, package, "__init__.py")) else ""


def without_zips(paths: list[str]) -> list[str]:
    """The paths with each such zip taken out; its directory keeps its place, or takes the zip's if it has none."""
    kept: list[str] = []
    for path in paths:
        root = installation(path)
        if not root:
            kept.append(path)
        elif root not in paths and root not in kept:
            kept.append(root)
    return kept


def run_hidden(name: str = "sitecustomize") -> None:
    """Run the module of this name that would have been found if this directory were not on the path."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    spec = PathFinder.find_spec(name, [path for path in sys.path if os.path.abspath(path) != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if __name__ == "sitecustomize":
    sys.path[:] = without_zips(sys.path)
    run_hidden()
