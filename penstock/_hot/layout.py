"""Numbers of the store's formats that the hot modules need as C constants; `layout.pxd` holds the same."""

from __future__ import annotations

MAGIC_V1 = -626843481  # 0xDAA320A7
MAGIC_V2 = -626843477  # 0xDAA320AB
MAGIC_BLANK = -875286124  # 0xCBD43194
BLANK_SIZE = 8
RECORD_SIZE_MIN = 91
ENTRY_SIZE = 20
SEAL_SIZE = 20
INDEX_HEADER_SIZE = 40
FILLER_SIZE = 0x7FFFFFFF  # size of the queue entries that stand for offsets without a record

# What `check_record` finds where there is no valid record; a valid one gives its size.
BLANK = -1
NOTHING = -2
BAD_SIZE = -3
BAD_MAGIC = -4
BAD_LENGTH = -5
BAD_CHECKSUM = -6
BAD_POSITION = -7
TORN = -8
REASONS = {
    BLANK: "blank record",
    NOTHING: "nothing written here",
    BAD_SIZE: "impossible record size",
    BAD_MAGIC: "unknown magic number",
    BAD_LENGTH: "lengths do not add up",
    BAD_CHECKSUM: "checksum mismatch",
    BAD_POSITION: "record says it belongs elsewhere",
    TORN: "the write was torn",
}

# Why the dispatcher stopped.
DONE = 0
END_OF_SEGMENT = 1
NEW_QUEUE = 2
GAP = 3
DAMAGED = 4

# What a scanned send is remembered by: byte offsets into its slots, 8 bytes each (`frames.py`).
S_FRAME = 0
S_BODY = 8
S_BODY_SIZE = 16
S_PROPERTIES = 24
S_PROPERTIES_SIZE = 32
S_FLAG = 40
S_SYS_FLAG = 48
S_BORN = 56
S_ID = 64
S_ID_SIZE = 72
S_OPAQUE = 80
S_ONEWAY = 88
S_FORM = 96
S_BATCH = 104
S_PHY = 112
S_OFFSET = 120
SLOT_COUNT = 16
