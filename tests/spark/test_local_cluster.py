"""A Spark whose executors are other processes, sharing nothing with the driver but the network and a few files.

The cluster asks who one is, over TLS, so every process has to have keys. The session of the other tests is in this
process, so the program runs in one of its own.
"""

import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pyspark
import pytest

from tests.spark.conftest import BROKERS
from tests.spark.processes import QUICK_SETTINGS, quick_java
from tests.support.guarded_node import SECRETS, GuardedNode, guarded_node

QUEUES, ROWS, BODY = 4, 400, 2_000
LIMIT_S = 400.0
PROGRAM = """
    import json, os, sys, time
    import penstock.spark
    from pyspark import TaskContext
    from pyspark.sql import functions as F

    address, topic, target, certificate, keys, idle_keys, folder, settings = sys.argv[1:]
    spark = penstock.spark.session("cluster", "local-cluster[2,1,1024]", log=f"{folder}/spark.log", **{
        "spark.executor.memory": "512m", "spark.log.level": "ERROR",
        "spark.executorEnv.PENSTOCK_CREDENTIALS": idle_keys,
        "spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{folder}/events",
        "spark.eventLog.compress": "false", "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
        **json.loads(settings),
    })
    print("application", spark.sparkContext.applicationId)
    where = {"nameserver": address, "topic": topic, "minPartitions": "4", "tlsTrusted": certificate}
    signed = {**where, "accessKey": "spark", "secretKey": sys.stdin.readline().strip()}
    frame = spark.read.format("penstock").options(**signed).load()
    print("rows", frame.count(), frame.where("queue_id = 1").count())
    print("sum", frame.agg(F.sum(F.length("body"))).first()[0])
    try:
        spark.read.format("penstock").options(**where).load().count()
    except Exception as error:
        print("refused", "user idle has no permission" in str(error))

    def executor():
        pid = os.getppid()  # of the daemon that this process was forked from
        while open(f"/proc/{pid}/comm").read().strip() != "java":
            pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
        return pid

    def dies_once(batches):
        yield from batches
        context = TaskContext.get()
        if context.partitionId() == 1 and context.attemptNumber() == 0:
            while not os.path.exists(f"{folder}/staged"):
                time.sleep(0.05)
            os.kill(executor(), 9)

    stream = spark.readStream.format("penstock").options(**where, credentialsFile=keys, group="spark").load()
    copied = stream.select("body").mapInArrow(dies_once, "body binary")
    sink = {**signed, "topic": target, "batchBytes": "4096"}
    del sink["minPartitions"]
    query = (
        copied.writeStream.format("penstock").options(**sink).option("checkpointLocation", f"{folder}/c")
        .trigger(availableNow=True).start()
    )
    query.awaitTermination()
    print("batches", len(query.recentProgress))
    spark.stop()
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    BROKERS.append(str(folder))
    with guarded_node(folder) as node:
        for name in ("in-cluster", "out-cluster"):
            node.admin.create_topic(name, QUEUES)
        node.send("in-cluster", [b"%08d" % number + b"x" * (BODY - 8) for number in range(ROWS)])
        yield node


def log_end(node: GuardedNode) -> int:
    assert node.server.broker is not None
    return int(node.server.broker.store.stats()["log"]["max_offset"])


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.abuse("A11")
@pytest.mark.invariant("I15")
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="an executor is found in /proc")
def test_executors_need_only_the_network_and_keys_and_one_that_dies_adds_nothing_twice(guarded, tmp_path):
    (tmp_path / "events").mkdir()
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    keys, idle = str(guarded.keys_file("spark")), str(guarded.keys_file("idle"))
    paths = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    line = [sys.executable, str(program), guarded.address, "in-cluster", "out-cluster", guarded.certificate]
    settings = QUICK_SETTINGS | {"spark.executor.extraJavaOptions": quick_java()}
    before = log_end(guarded)
    with open(tmp_path / "stdout", "wb") as out, open(tmp_path / "stderr", "wb") as err:
        process = subprocess.Popen(
            [*line, keys, idle, str(tmp_path), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": paths, "PENSTOCK_CREDENTIALS": keys},
        )
    try:
        assert process.stdin is not None
        process.stdin.write(SECRETS["spark"].encode() + b"\n")
        process.stdin.close()
        deadline = time.monotonic() + LIMIT_S
        # Three tasks of four have about 600 kB to stage; more than that is of the one that will die.
        while log_end(guarded) - before < ROWS * BODY * 7 // 8 and process.poll() is None:
            assert time.monotonic() < deadline, (tmp_path / "stderr").read_text()[-3000:]
            time.sleep(0.05)
        assert guarded.stored("out-cluster") == [], "nothing is published before all of it is staged"
        (tmp_path / "staged").touch()
        code = process.wait(max(1.0, deadline - time.monotonic()))
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert code == 0, (tmp_path / "stderr").read_text()[-3000:]
    said = dict(text.split(maxsplit=1) for text in (tmp_path / "stdout").read_text().splitlines())
    application = said.pop("application")
    # An executor signs with the keys of its own environment, unless options say with which.
    assert said == {"rows": "400 100", "sum": str(ROWS * BODY), "refused": "True", "batches": "1"}
    found = guarded.stored("out-cluster")
    assert (len(found), len({body[:8] for body in found})) == (ROWS, ROWS)
    # The attempt that died had staged rows: they are in the log a second time, and in no queue.
    assert log_end(guarded) - before > ROWS * BODY * 17 // 8
    assert sum(item.lag for item in guarded.admin.describe_group("spark").progress) == 0
    work = Path(pyspark.__file__).parent / "work" / application
    assert any(work.rglob("stderr"))
    assert any((tmp_path / "events").rglob("*"))
    for path in (*tmp_path.rglob("*"), *work.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            assert not any(secret.encode() in data for secret in SECRETS.values()), path
    shutil.rmtree(work)
