"""`penstock pipeline prepare`: are Java and PySpark there, does a job run; and an archive for quicker starts."""

from __future__ import annotations

import time

import click

from penstock.cli.clients import echo_json
from penstock.cli.pipeline_options import Job, pipeline_options


@click.command()
@pipeline_options(nameserver=False, checkpoint=False)
def prepare(job: Job) -> None:
    """See whether Spark runs here, and make its start quicker.

    Makes, once, an archive of the classes that Spark loads (about 20 s, 150 MB in the user's cache) and runs a
    small job with it.
    """
    from penstock.cli.pipeline_session import spark_session
    from penstock.spark import needs_extra
    from penstock.spark.java import find_java, make_archive

    try:
        import pyspark
    except ModuleNotFoundError as error:
        raise needs_extra(error) from error
    java, version = find_java()
    facts: dict[str, object] = {
        "pyspark": pyspark.__version__,
        "java": str(java),
        "java_version": version.splitlines()[0],
    }
    started = time.perf_counter()
    archive = make_archive()
    facts["archive"] = str(archive) if archive else "off"
    facts["archive_seconds"] = round(time.perf_counter() - started, 1)
    started = time.perf_counter()
    with spark_session("prepare", job.master, job.conf) as spark:
        facts["start_seconds"] = round(time.perf_counter() - started, 1)
        facts["master"] = spark.sparkContext.master
        facts["rows"] = spark.range(1000).repartition(2).count()
    facts["seconds"] = round(time.perf_counter() - started, 1)
    if job.as_json:
        echo_json(facts)
        return
    for name, value in facts.items():
        click.echo(f"{name.replace('_', ' '):<16} {value}")
    click.echo("Spark runs here")
