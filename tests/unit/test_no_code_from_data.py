"""Data never becomes code (A23): nothing in the product can unpickle, evaluate, or start a shell.

The linter says the same of names; this looks at every call, also where a linter's comment would silence it.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "penstock").rglob("*.py"))
MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle"}
CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load"}
CALLS |= {"yaml.full_load", "yaml.load_all", "pandas.read_pickle", "numpy.load"}


def found_in(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in CALLS:
                found.append(name)
            for keyword in node.keywords:
                if keyword.arg == "shell" and not (
                    isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                ):
                    found.append(f"{name}(shell=...)")
                if keyword.arg == "allow_pickle":
                    found.append(f"{name}(allow_pickle=...)")
    return found


@pytest.mark.abuse("A23")
def test_no_module_can_make_code_of_data() -> None:
    assert len(SOURCES) > 300
    found = {str(path.relative_to(ROOT)): calls for path in SOURCES if (calls := found_in(path.read_text()))}
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from marshal import loads",
        "eval('1')",
        "subprocess.run('ls', shell=True)",
        "subprocess.run('ls', shell=flag)",
        "yaml.load(text)",
        "numpy.load(path, allow_pickle=True)",
    ],
)
def test_what_it_looks_for_it_finds(source: str) -> None:
    assert found_in(source)
