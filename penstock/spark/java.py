"""Java for Spark: which one runs, and an archive of loaded classes that makes it start in half the time.

    python -m penstock.spark.java        # make the archive now; `make setup` does

Spark loads about ten thousand classes before the first job. The JVM can keep them, parsed and checked, in a file
that later starts map into memory (class-data sharing): 152 MB in the user's cache, made once in about 20 s.

Rules: an archive belongs to one Java and one PySpark, whose names are in its file's; one that does not fit is
ignored by the JVM without a word, so it can only help. It is made in a process of its own under another name and
renamed when whole, so that nobody maps half of one. Runs on the driver; never starts a JVM unasked.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from penstock.errors import PenstockError

JAVA_MIN = 17
MAKE_LIMIT_S = 600
# Set to `off`, no archive is used or made; set to a directory, archives are kept there.
CACHE_VARIABLE = "PENSTOCK_SPARK_CACHE"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)([^"]*)"')


def find_java() -> tuple[Path, str]:
    """The `java` that PySpark will run, and its version; an error that says what to do where there is none."""
    home = os.environ.get("JAVA_HOME")
    found = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    hint = f"install Java {JAVA_MIN} or later (a headless runtime is enough), or set JAVA_HOME to one"
    try:
        done = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        where = f"JAVA_HOME is {home}, and {found}" if home else "there is no java on PATH, or it"
        raise PenstockError(f"Spark needs Java: {where} does not run", hint) from error
    version = _VERSION.search(done.stderr)
    if version is not None and int(version[1]) < JAVA_MIN:
        raise PenstockError(f"Spark needs Java {JAVA_MIN} or later; {found} is Java {version[1]}", hint)
    return found.resolve(), done.stderr.strip()


def archive_path() -> Path | None:
    """Where the archive for this Java and this PySpark is, or would be; None where archives are switched off."""
    setting = os.environ.get(CACHE_VARIABLE, "")
    if setting.lower() == "off":
        return None
    import pyspark

    java, version = find_java()
    about = "\n".join((str(java), version, pyspark.__version__, str(Path(pyspark.__file__).parent)))
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(setting) if setting else Path(cache, "penstock", "spark")
    name = hashlib.sha256(about.encode()).hexdigest()[:12]
    return folder / f"classes-{pyspark.__version__}-{name}.jsa"


def existing_archive() -> Path | None:
    """The archive if it is there."""
    try:
        path = archive_path()
    except (PenstockError, RuntimeError):  # no Java, which the start will say; no home directory
        return None
    return path if path is not None and path.is_file() else None


def make_archive() -> Path | None:
    """Make the archive unless it is there; None where archives are switched off. Takes about 20 s."""
    path = archive_path()
    if path is None or path.is_file():
        return path
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    options = f"-XX:ArchiveClassesAtExit={temporary} -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+load=off"
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f'--driver-java-options "{options}" pyspark-shell',
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [sys.executable, "-c", _LOAD_CLASSES],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=MAKE_LIMIT_S,
            check=False,
        )
        if done.returncode != 0 or not temporary.is_file():
            reason = done.stderr.strip().splitlines()[-1:] or ["the JVM wrote no archive"]
            raise PenstockError(
                f"the archive of classes could not be made: {reason[0]}",
                f"Spark works without it; {CACHE_VARIABLE}=off ends the attempts",
            )
        os.replace(temporary, path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PenstockError(
            f"the archive of classes could not be made: {error}",
            f"Spark works without it; set {CACHE_VARIABLE} to a directory that can be written, or to off",
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


# What nearly every job loads: SQL, a shuffle, Parquet, JSON, the streaming engine. The JVM writes its archive when
# it ends, which is waited for: the Python process would be gone long before.
_LOAD_CLASSES = """
import shutil, tempfile
from pyspark.sql import SparkSession, functions as F
folder = tempfile.mkdtemp(prefix="penstock-classes-")
try:
    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1").config("spark.sql.warehouse.dir", folder).getOrCreate()
    )
    rows = spark.range(100).selectExpr("id", "id % 7 as k", "cast(id as string) as body")
    rows.write.parquet(folder + "/rows")
    read = spark.read.parquet(folder + "/rows")
    read.groupBy("k").agg(F.count("*"), F.max("body")).orderBy("k").collect()
    read.selectExpr("to_json(struct(*)) as j").selectExpr("from_json(j, 'id bigint, k bigint') as p").collect()
    stream = spark.readStream.schema(read.schema).parquet(folder + "/rows").groupBy("k").count()
    query = stream.writeStream.outputMode("complete").format("memory").queryName("q").trigger(availableNow=True)
    query.option("checkpointLocation", folder + "/checkpoint").start().awaitTermination()
    process = spark.sparkContext._gateway.proc
    spark.stop()
    process.stdin.close()
    process.wait(120)
finally:
    shutil.rmtree(folder, ignore_errors=True)
"""


if __name__ == "__main__":
    try:
        made = make_archive()
        sys.stdout.write(f"{made or 'switched off'}\n")
    except (PenstockError, ModuleNotFoundError) as problem:
        sys.stderr.write(f"penstock: {problem}\n")
        sys.exit(1)
