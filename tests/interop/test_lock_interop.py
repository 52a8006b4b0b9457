"""One writer per directory, whichever program it is: both take the same lock in the same way."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import StoreLockedError
from penstock.store import MessageStore
from tests.interop import penstock_side
from tests.interop.java_errors import JavaStoreLocked
from tests.interop.java_store import JavaStore
from tests.interop.penstock_side import OPTIONS, check_content, check_java_content
from tests.interop.workload import more_messages


@pytest.mark.feature("store-lock", "rocketmq-5.3", "rocketmq-4.9")
def test_java_cannot_have_what_penstock_holds(java: JavaStore, tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, OPTIONS) as store:
        store.append(penstock_side.message_of(more_messages(1, "held")[0]))
        assert java.lock_test(tmp_path) is False
        with pytest.raises(JavaStoreLocked):
            java.read(tmp_path)
        assert store.is_writable
    assert java.lock_test(tmp_path) is True


@pytest.mark.feature("store-lock", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.invariant("I4")
def test_penstock_cannot_have_what_java_holds(java: JavaStore, tmp_path: Path) -> None:
    records = penstock_side.write(tmp_path, more_messages(20, "before"))
    with java.hold_lock(tmp_path) as held:
        before = penstock_side.fingerprint(tmp_path)
        with pytest.raises(StoreLockedError):
            MessageStore.open(tmp_path, OPTIONS)
        with MessageStore.open(tmp_path, OPTIONS, read_only=True) as store:
            check_content(store, records)
        assert held.process.poll() is None
        assert penstock_side.fingerprint(tmp_path)["abort"] == before["abort"]
    records += penstock_side.write(tmp_path, more_messages(20, "after"))
    check_java_content(java.read(tmp_path, halt=True), records)


@pytest.mark.feature("store-lock", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.fault("F1")
def test_a_killed_java_leaves_no_lock(java: JavaStore, tmp_path: Path) -> None:
    records = penstock_side.write(tmp_path, more_messages(20, "before"))
    with java.hold_lock(tmp_path) as held:
        held.kill()
    with MessageStore.open(tmp_path, OPTIONS) as store:
        assert not store.report.clean
        check_content(store, records)
