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
# No log is that long. What says that it lies behind this is damage, and sums with it would overflow.
POSITION_MAX = 1 << 62
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

# Why a row is missing, beside what `check_record` says.
NO_RECORD = -9
ELSEWHERE = -10
NOT_PACKED = -11
GONE = -12
ROW_REASONS = {
    **REASONS,
    NO_RECORD: "this offset has no record",
    ELSEWHERE: "its queue entry leads to a record of another place",
    NOT_PACKED: "its body cannot be unpacked",
    GONE: "its part of the log is not there any more",
}

# Where the parts of a chosen row are in the bytes it came from: byte offsets into its slots (`rows.py`).
# A block of rows is turned into columns before the next one is looked at: small enough to stay in the cache.
BLOCK_ROWS = 512
BLOCK_BYTES = 196608
# How many entries ahead a record is asked for.
AHEAD = 8
R_RECORD = 0
R_REST = 8
R_BODY = 16
R_BODY_SIZE = 24
R_TOPIC = 32
R_TOPIC_SIZE = 40
R_TEXT = 48
R_TEXT_SIZE = 56
R_KEYS = 64
R_KEYS_SIZE = 72
R_TAGS = 80
R_TAGS_SIZE = 88
R_ID = 96
R_ID_SIZE = 104
R_PLAIN = 112
ROW_SIZE = 120
# From so many properties on a row goes through a dictionary: comparing each name with each would take too long.
PAIRS_MAX = 64

# An item of a staged batch, and why one is refused (`staged.py`). A delayed copy needs some room for DELAY.
ITEM_SIZE_MIN = 22
DELAY_ROOM = 24
I_LENGTHS = 1
I_TARGET = 2
I_LEVEL = 3
I_PAIR = 4
I_RESERVED = 5
I_NO_KEY = 6
I_TOO_LONG = 7
ITEM_REFUSALS = {
    I_LENGTHS: "its lengths do not add up",
    I_TARGET: "it goes to a queue that the head does not name",
    I_LEVEL: "its delay level is no level",
    I_PAIR: "its properties are no pairs of a name and a value",
    I_RESERVED: "one of its properties is the broker's own to set",
    I_NO_KEY: "it has no UNIQ_KEY",
    I_TOO_LONG: "its properties take more bytes than a record has room for",
}

# Why a row cannot become a message: in which column, and what is wrong there (`encode.py`).
E_NO_BODY = 1
E_LONG_BODY = 2
E_NO_TOPIC = 3
E_KEYS = 4
E_TAGS = 5
E_NAME = 6
E_VALUE = 7
E_PROPERTIES = 8
E_QUEUE = 9
E_DELAY = 10
# Unique keys that differ in their last four hex digits only.
IDS_PER_MOMENT = 65536
