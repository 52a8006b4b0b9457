"""Store options with which no disk is too full: for programs that tests start, which see the machine's real disk."""

from __future__ import annotations

NO_DISK_LIMITS = {
    "disk_max_used_percent": 100,
    "disk_clean_forcibly_percent": 100,
    "disk_refuse_writes_percent": 100,
    "disk_warning_percent": 100,
}
