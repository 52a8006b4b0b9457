"""Compiles the hot modules; everything else about the package is in pyproject.toml.

Each `penstock/_hot/<name>.py` that `penstock._hot.MODULES` names is both ordinary Python and the source of
the extension module `penstock._hot.<name>` (Cython's pure-Python mode). An extension is optional: where no
compiler is found, or it fails, the package installs all the same and runs the Python form. The other files
there are never compiled: the compiled form of `bits.py` and `layout.py` is the .pxd of the same name, and
`shadow.py` stands in for Cython where it is absent.

Environment:
    PENSTOCK_PURE=1    compile nothing
    PENSTOCK_BOUNDS=1  check indexes into memory views, arrays and sequences: for fuzzing, slow. What goes
                       through a pointer is not seen
    PENSTOCK_TRACE=1   the same, and report lines to debuggers and coverage
    PENSTOCK_ASAN=1    the code of the release form under AddressSanitizer and UndefinedBehaviorSanitizer (gcc), which
                       see what goes through pointers: `make asan`, in a folder of its own

What Cython generates goes to build/, never beside the sources; `build_ext --inplace` and an editable install
put only the finished .so there. Modules are translated and compiled side by side, one for each core.

The description that a package index shows is the first screen of README.md.
"""

import ast
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HOT = Path("penstock", "_hot")


def is_set(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0")


PURE = is_set("PENSTOCK_PURE")
TRACE = is_set("PENSTOCK_TRACE")
BOUNDS = is_set("PENSTOCK_BOUNDS") or TRACE
ASAN = is_set("PENSTOCK_ASAN")
CORES = os.cpu_count() or 1
# One tree of build products per form, so that going from one to another never takes up the other's objects.
BUILD_BASE = "build/asan" if ASAN else "build/trace" if TRACE else "build/bounds" if BOUNDS else "build"
# -g0 undoes the -g that Python was itself built with: ten times the size for no reader. Python's -fwrapv would hide
# sums that overflow.
RELEASE_ARGS = ["-O3", "-g0"]
SANITIZERS = "-fsanitize=address,undefined"
ASAN_ARGS = ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-wrapv", SANITIZERS, "-fno-sanitize-recover=all"]


def hot_sources() -> list[Path]:
    """The files that `penstock._hot.MODULES` names: read, not imported, since nothing is installed yet."""
    for statement in ast.parse((HOT / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "MODULES":
            return [HOT / f"{name}.py" for name in ast.literal_eval(statement.value)]
    raise SystemExit(f"{HOT}/__init__.py does not say in MODULES which modules are compiled")


def hot_extensions() -> list[Extension]:
    sources = [] if PURE else hot_sources()
    if sources and find_spec("Cython") is None:
        print("penstock: Cython is not installed, the hot modules stay uncompiled", file=sys.stderr)
        return []
    headers = sorted(str(path) for path in HOT.glob("*.pxd"))
    return [
        Extension(
            f"penstock._hot.{path.stem}",
            [str(path)],
            depends=headers,
            extra_compile_args=(ASAN_ARGS if ASAN else RELEASE_ARGS) if os.name == "posix" else [],
            extra_link_args=[SANITIZERS] if ASAN else [],
            define_macros=[("CYTHON_TRACE", "1")] if TRACE else [],
            optional=not ASAN,
        )
        for path in sources
    ]


def translated(extensions: list[Extension]) -> dict[str, list[str]]:
    """The C sources of each extension, which Cython writes."""
    from Cython.Build import cythonize

    made = cythonize(
        extensions,
        nthreads=CORES,
        build_dir=f"{BUILD_BASE}/cython",
        compiler_directives={
            "language_level": "3",
            "annotation_typing": True,
            "boundscheck": BOUNDS,
            "cdivision": True,
            "embedsignature": True,
            "initializedcheck": BOUNDS,
            "linetrace": TRACE,
            "wraparound": False,
        },
    )
    return {extension.name: extension.sources for extension in made}


class BuildHotModules(build_ext):
    """All hot modules are compiled, or none is left that is.

    Python prefers a .so to the .py beside it. After a failure yesterday's .so would go on being imported in
    place of its changed source, and compiled modules that share C types with a missing one cannot load. So
    one failure removes them all, and the package runs in its Python form.
    """

    def run(self) -> None:
        self.failed = False
        if self.extensions:
            sources = translated(self.extensions)
            for extension in self.extensions:
                extension.sources = sources[extension.name]
        super().run()
        if self.failed:
            for extension in self.extensions:
                name = Path(self.get_ext_filename(extension.name)).name
                for folder in (HOT, Path(self.build_lib) / HOT):
                    (folder / name).unlink(missing_ok=True)
            print(
                "penstock: no C compiler, or it failed: the hot modules stay uncompiled. Everything works, several "
                "times slower. For the compiled form install a C compiler and the headers of Python, then penstock "
                "again.",
                file=sys.stderr,
            )

    def build_extension(self, ext: Any) -> None:
        try:
            super().build_extension(ext)
        except Exception:
            self.failed = True
            raise  # To setuptools, which warns and goes on, since every extension is optional.


def description() -> str:
    """The first screen of README.md, without what leads nowhere on another site: pictures and relative links."""
    text = Path("README.md").read_text(encoding="utf-8").partition("<!-- first screen: end -->")[0]
    text = re.sub(r"^!\[.*\n+", "", text, flags=re.M)
    return re.sub(r"\[([^\]]+)\]\((?!https://)[^)]+\)", r"\1", text)


# Processes that Cython starts may import this file again.
if __name__ == "__main__":
    setup(
        ext_modules=hot_extensions(),
        cmdclass={"build_ext": BuildHotModules},
        long_description=description(),
        long_description_content_type="text/markdown",
        options={"build": {"build_base": BUILD_BASE}, "build_ext": {"parallel": CORES}},
    )
