"""`verify`: the whole store against itself, read once, nothing changed."""

from __future__ import annotations

from pathlib import Path

from penstock import _hot
from penstock.runtime import Runtime
from penstock.store.checkpoint import SIZE
from penstock.store.inspection.index_check import IndexCheck
from penstock.store.inspection.log_pass import LogPass
from penstock.store.inspection.queue_check import QueueCheck
from penstock.store.inspection.report import LogTotals, VerifyReport
from penstock.store.inspection.view import StoreView
from penstock.store.recovery import Progress
from penstock.store.sizes import GivenSizes


def verify(
    path: Path,
    given: GivenSizes | None = None,
    *,
    runtime: Runtime | None = None,
    in_use: bool = False,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check every record, queue entry, index entry and slot, the checkpoint and the set of files.

    `in_use` says that a broker holds the directory's lock: the store is then judged like one that was not
    closed cleanly, because what is in the broker's memory is missing from the files.
    """
    runtime = runtime or Runtime.system()
    started = runtime.clock.monotonic_ms()
    with StoreView(path, given or GivenSizes(), runtime, in_use=in_use) as view:
        _note_state(view)
        _check_start(view)
        queues, index = QueueCheck(view), IndexCheck(view)
        try:
            log_pass = LogPass(
                view, checksums=True, entries=queues.compare, keys=index.feed, progress=progress
            )
            index.use_damage(log_pass.is_lost)
            log_pass.run()
            queue_totals = queues.finish(log_pass)
            index_totals = index.finish()
        finally:
            index.close()
        log_totals = log_pass.totals()
        _check_checkpoint(view, log_totals)
        return VerifyReport(
            path=str(path),
            form=_hot.form(),
            sizes=view.sizes,
            clean=view.clean,
            in_use=in_use,
            log=log_totals,
            queues=queue_totals,
            index=index_totals,
            checkpoint=view.checkpoint,
            issues=view.issues.sorted(),
            issues_total=view.issues.total,
            damage_total=view.issues.damage_total,
            duration_ms=runtime.clock.monotonic_ms() - started,
        )


def _note_state(view: StoreView) -> None:
    """How the store was left, and what lies behind the end of its log."""
    if view.in_use:
        view.issues.note("in use", "a broker owns the directory; its newest messages may not be in the files")
    elif not view.clean:
        view.issues.note("not closed", "the abort marker is there: the next open recovers", path="abort")
    torn = view.end.torn_bytes
    if torn:
        where, at = view.segment_path(view.end.position)
        tell = view.issues.damage if view.clean else view.issues.note
        tell(
            "damaged end of the log" if view.clean else "torn end of the log",
            "bytes behind the last record" + ("" if view.clean else "; the next open drops them"),
            position=view.end.position,
            length=torn,
            path=where,
            at=at,
        )


def _check_start(view: StoreView) -> None:
    """Whether the log still begins where the manifest says; not asked where a Java broker may have deleted."""
    if view.manifest is None or not view.checkpoint.sealed or not view.log.segments:
        return
    lost = view.log.min_offset - view.manifest.log_start
    if lost > 0:
        view.issues.damage(
            "damaged log", "the first segments are gone", position=view.manifest.log_start, length=lost
        )


def _check_checkpoint(view: StoreView, log: LogTotals) -> None:
    """Whether it promises more than the log has; what it says is never taken for more than that."""
    path = str(view.paths.checkpoint)
    if not view.checkpoint_exists:
        if log.records:
            view.issues.note("no checkpoint", "recovery after a crash would read the whole log", path=path)
        return
    size = view.runtime.disk.size(view.paths.checkpoint)
    if size != SIZE:
        view.issues.damage("damaged checkpoint", f"file has {size} bytes, not {SIZE}", path=path)
    values = view.checkpoint
    times = (
        ("log", values.physic_timestamp, 0),
        ("queues", values.logics_timestamp, 8),
        ("index", values.index_timestamp, 16),
    )
    implausible = False
    for name, time_ms, at in times:
        if time_ms < 0 or (log.records and time_ms > log.last_timestamp):
            implausible = True
            detail = (
                f"the {name} would be on disk up to {time_ms}, the newest record is of {log.last_timestamp}"
            )
            view.issues.damage("damaged checkpoint", detail, path=path, at=at)
    if values.sealed and values.durable_offset > log.end:
        implausible = True
        lost = values.durable_offset - log.end
        view.issues.damage(
            "damaged log",
            f"{lost} bytes that were on disk are gone",
            position=log.end,
            length=lost,
            path=path,
            at=32,
        )
    if not values.trusted and not implausible:
        detail = "its checksum does not match: a Java broker wrote it after us, or it is damaged; recovery ignores it"
        view.issues.note("checkpoint not trusted", detail, path=path)
