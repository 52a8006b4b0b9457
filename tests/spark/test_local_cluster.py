"""A Spark whose executors are other processes, sharing nothing with the driver but the network.

The session of the other tests is in this process, so the program runs in one of its own.
"""

import os
import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import os, sys
    import penstock.spark
    from pyspark.sql import functions as F

    address, topic, folder = sys.argv[1:]
    spark = penstock.spark.session("cluster", "local-cluster[2,1,1024]", log=f"{folder}/spark.log", **{
        "spark.executor.memory": "512m", "spark.driver.memory": "512m", "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2", "spark.executorEnv.PENSTOCK_WHERE": "executor",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    })
    options = {"nameserver": address, "topic": topic, "minPartitions": "4"}
    frame = spark.read.format("penstock").options(**options).load()
    print("rows", frame.count(), frame.where("queue_id = 1").count())
    print("sum", frame.agg(F.sum(F.length("body"))).first()[0])
    query = (
        spark.readStream.format("penstock").options(**options, group="cluster").load()
        .writeStream.format("parquet").option("checkpointLocation", f"{folder}/c")
        .trigger(availableNow=True).start(f"{folder}/out")
    )
    query.awaitTermination()
    print("streamed", spark.read.parquet(f"{folder}/out").select("queue_id", "queue_offset").distinct().count())
    spark.stop()
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(240)
def test_executors_need_only_the_network(node, tmp_path):
    topic = node.topic("cluster", 4)
    for queue in range(4):
        node.send(topic, [b"x" * 10] * 100, queue_id=queue)
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    done = subprocess.run(
        [sys.executable, str(program), node.address, topic, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["rows 400 100", "sum 4000", "streamed 400"]
    assert sum(item.lag for item in node.admin.describe_group("cluster").progress) == 0
