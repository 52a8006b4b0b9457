"""Whether a store takes messages, and if not, why.

Owned by whoever holds the store's append lock; `accepting` may be read by anyone.
"""

from __future__ import annotations

from penstock.errors import DiskFullError, StoreClosedError, StoreError, StoreFailedError, StoreRoleError
from penstock.store.flush import LogFlusher


class WriteGate:
    """Closed until `open`; stopped for good by a failure, for a while by a full disk, and for messages as long as the
    store is a replica, which takes its master's bytes instead."""

    def __init__(self, flusher: LogFlusher, *, read_only: bool) -> None:
        self._flusher = flusher
        self._read_only = read_only
        self._failure: StoreFailedError | None = None
        self._disk_refusal: DiskFullError | None = None
        self.closed = True
        self.is_replica = False
        # Whether appends need no closer look: open for writing, no failure, and the keeper content with the disk.
        self.accepting = False

    def open(self) -> None:
        """Reads may come; appends once the keeper has looked at the disk."""
        self.closed = False

    def close(self) -> None:
        self.closed, self.accepting = True, False

    def check_open(self) -> None:
        if self.closed:
            raise StoreClosedError("the store is closed", "open it again")

    def check_writable(self) -> None:
        """Raise the reason why an append would not be accepted."""
        self.check_usable()
        if self.is_replica:
            raise StoreRoleError(
                "this store is a replica: it takes what its master sends and no messages of its own",
                "send to the master",
            )

    def check_replica(self) -> None:
        """Raise the reason why a master's bytes would not be accepted."""
        self.check_usable()
        if not self.is_replica:
            raise StoreRoleError("this store is not a replica", "call replica_mode(True) first")

    def check_usable(self) -> None:
        """Raise the reason why nothing can be written here, whoever asks."""
        self.check_sound()
        if self._disk_refusal is not None:
            raise self._disk_refusal

    def check_sound(self) -> None:
        """The same for what takes no space."""
        self.check_open()
        if self._read_only:
            raise StoreClosedError("the store was opened read-only", "open it without read_only")
        self._flusher.check()
        if self._failure is not None:
            raise self._failure

    def fail(self, message: str) -> StoreFailedError:
        """Stop accepting for good: the error that every append gets from now on."""
        error = self._failure or StoreFailedError(message, "check the disk, then restart")
        self.stop(error)
        return error

    def stop(self, error: StoreFailedError) -> None:
        self._failure = error
        self.accepting = False

    def refuse_writes(self, reason: str | None) -> None:
        """The keeper's word on the disk: a reason to refuse appends, or None to accept them again."""
        hint = "free space or let retention delete; then send again"
        self._disk_refusal = DiskFullError(reason, hint) if reason else None
        self._decide()

    def set_replica(self, is_replica: bool) -> None:
        self.is_replica = is_replica
        self._decide()

    def _decide(self) -> None:
        refused = self._disk_refusal is not None or self._failure is not None
        self.accepting = not (refused or self.closed or self.is_replica or self._read_only)

    @property
    def has_failed(self) -> bool:
        return self._failure is not None or self._flusher.failure is not None

    @property
    def is_writable(self) -> bool:
        try:
            self.check_writable()
        except StoreError:
            return False
        return True
