package penstock.interop;

/** One entry of a consume queue as the store itself reads it. */
final class QueueUnit {
    final long physicalOffset;
    final int size;
    final long tagsCode;

    QueueUnit(long physicalOffset, int size, long tagsCode) {
        this.physicalOffset = physicalOffset;
        this.size = size;
        this.tagsCode = tagsCode;
    }
}
