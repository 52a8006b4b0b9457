"""Looking at a store directory without changing it, also one that is damaged, in use, or a Java broker's.

`verify` compares everything with everything, `stats` counts, `dump_log` and `dump_queues` show messages. None of
them takes the lock, repairs, or trusts what recovery would make of the files: they say what is there.
"""

from penstock.store.inspection.dump import dump_log, dump_queues
from penstock.store.inspection.log_scan import DamagedRange
from penstock.store.inspection.report import (
    FileStats,
    IndexTotals,
    Issue,
    LogTotals,
    QueueStats,
    QueueTotals,
    StoreStats,
    VerifyReport,
)
from penstock.store.inspection.stats import stats
from penstock.store.inspection.verify import verify

__all__ = [
    "DamagedRange",
    "FileStats",
    "IndexTotals",
    "Issue",
    "LogTotals",
    "QueueStats",
    "QueueTotals",
    "StoreStats",
    "VerifyReport",
    "dump_log",
    "dump_queues",
    "stats",
    "verify",
]
