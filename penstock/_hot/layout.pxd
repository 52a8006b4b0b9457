# As wide as positions are, which no constant of an enum is.
cdef extern from *:
    """
    #define PENSTOCK_POSITION_MAX (1LL << 62)
    """
    const long long POSITION_MAX "PENSTOCK_POSITION_MAX"

cdef enum:
    MAGIC_V1 = -626843481
    MAGIC_V2 = -626843477
    MAGIC_BLANK = -875286124
    BLANK_SIZE = 8
    RECORD_SIZE_MIN = 91
    ENTRY_SIZE = 20
    SEAL_SIZE = 20
    INDEX_HEADER_SIZE = 40
    FILLER_SIZE = 0x7FFFFFFF

    BLANK = -1
    NOTHING = -2
    BAD_SIZE = -3
    BAD_MAGIC = -4
    BAD_LENGTH = -5
    BAD_CHECKSUM = -6
    BAD_POSITION = -7
    TORN = -8

    DONE = 0
    END_OF_SEGMENT = 1
    NEW_QUEUE = 2
    GAP = 3
    DAMAGED = 4

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

    NO_RECORD = -9
    ELSEWHERE = -10
    NOT_PACKED = -11
    GONE = -12

    BLOCK_ROWS = 512
    BLOCK_BYTES = 196608
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
    PAIRS_MAX = 64

    ITEM_SIZE_MIN = 22
    DELAY_ROOM = 24
    I_LENGTHS = 1
    I_TARGET = 2
    I_LEVEL = 3
    I_PAIR = 4
    I_RESERVED = 5
    I_NO_KEY = 6
    I_TOO_LONG = 7

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
    IDS_PER_MOMENT = 65536
