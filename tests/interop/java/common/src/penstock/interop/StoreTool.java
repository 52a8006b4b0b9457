package penstock.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.File;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.channels.FileLock;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.AppendMessageResult;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/**
 * Drives Apache RocketMQ's own DefaultMessageStore on a directory and answers in JSON lines on standard output.
 *
 * <p>The rule: whatever is printed came out of RocketMQ's classes, never out of code of ours that reads the files.
 * Commands: write, read, query, locktest, holdlock; see java_store.py for their meaning. Exit codes: 0 done, 1 failed,
 * 3 load() refused the directory, 4 another process holds the lock, 5 a clean stop was refused, 9 halted on purpose.
 */
public final class StoreTool {
    private static final int REFUSED = 3;
    private static final int LOCKED = 4;
    private static final int UNCLEAN = 5;
    private static final int HALTED = 9;
    private static final long DISPATCH_WAIT_MS = 60_000;
    private static final int QUERY_MAX = 64;

    private final PrintStream answers;
    private final Options options;
    private final String directory;

    private StoreTool(PrintStream answers, Options options) {
        this.answers = answers;
        this.options = options;
        this.directory = options.words.get(1);
    }

    public static void main(String[] args) {
        // Loggers of the store may print to standard output; that stream is for answers only.
        PrintStream answers =
            new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
        System.setOut(System.err);
        int code = 1;
        try {
            Release.logWarnings();
            code = new StoreTool(answers, Options.parse(args)).run();
        } catch (Throwable failure) {
            failure.printStackTrace();
        }
        answers.flush();
        // Not exit(): some of the store's threads are not daemons, and after a refused load they never end.
        Runtime.getRuntime().halt(code);
    }

    private int run() throws Exception {
        String command = options.words.get(0);
        switch (command) {
            case "write":
                return write(options.words.get(2));
            case "read":
                return read();
            case "query":
                return query(options.words.get(2), options.words.get(3));
            case "locktest":
                return lockTest();
            case "holdlock":
                return holdLock(Long.parseLong(options.words.get(2)));
            default:
                throw new IllegalArgumentException("unknown command " + command);
        }
    }

    private int write(String specFile) throws Exception {
        List<String> lines = Files.readAllLines(Paths.get(specFile), StandardCharsets.UTF_8);
        DefaultMessageStore store = Release.open(options.storeConfig(directory));
        int refusal = loadAndStart(store);
        if (refusal != 0) {
            return refusal;
        }
        for (String line : lines) {
            JSONObject spec = JSON.parseObject(line);
            JSONArray batch = spec.getJSONArray("batch");
            answer(putResult(batch == null
                ? Release.put(store, MessageJson.single(spec))
                : store.putMessages(MessageJson.batch(batch))));
        }
        answerOffsets(store);
        return options.halt ? HALTED : stop(store);
    }

    private int read() throws Exception {
        DefaultMessageStore store = Release.open(options.storeConfig(directory));
        int refusal = loadAndStart(store);
        if (refusal != 0) {
            return refusal;
        }
        for (Map.Entry<String, TreeSet<Integer>> topic : queuesOnDisk().entrySet()) {
            for (int queueId : topic.getValue()) {
                readQueue(store, topic.getKey(), queueId);
            }
        }
        answerOffsets(store);
        return stop(store);
    }

    /** One message per call, so that the logical offset of each answer is known from the question. */
    private void readQueue(DefaultMessageStore store, String topic, int queueId) throws Exception {
        long min = store.getMinOffsetInQueue(topic, queueId);
        long max = store.getMaxOffsetInQueue(topic, queueId);
        JSONObject range = new JSONObject(true);
        range.put("topic", topic);
        range.put("queueId", queueId);
        range.put("minOffset", min);
        range.put("maxOffset", max);
        answer("queue", range);
        for (long offset = min; offset < max; offset++) {
            GetMessageResult got = store.getMessage("penstock-interop", topic, queueId, offset, 1, null);
            try {
                List<SelectMappedBufferResult> found = got.getMessageMapedList();
                MessageExt message = found.isEmpty() ? null : decode(found.get(0));
                QueueUnit unit = Release.unit(store, topic, queueId, offset);
                if (message == null || unit == null) {
                    String undecodable = unit == null ? "NO_QUEUE_ENTRY" : "UNDECODABLE";
                    answer("gap", gap(topic, queueId, offset, found.isEmpty() ? got.getStatus().name() : undecodable));
                    continue;
                }
                JSONObject line = MessageJson.describe(message);
                line.put("logicalOffset", offset);
                line.put("unitPhysicalOffset", unit.physicalOffset);
                line.put("unitSize", unit.size);
                line.put("tagsCode", unit.tagsCode);
                answer("message", line);
            } finally {
                got.release();
            }
        }
    }

    private int query(String topic, String key) throws Exception {
        DefaultMessageStore store = Release.open(options.storeConfig(directory));
        int refusal = loadAndStart(store);
        if (refusal != 0) {
            return refusal;
        }
        QueryMessageResult hits = store.queryMessage(topic, key, QUERY_MAX, 0, Long.MAX_VALUE);
        for (ByteBuffer record : hits.getMessageBufferList()) {
            MessageExt message = MessageDecoder.decode(record, true, false);
            answer("hit", MessageJson.describe(message));
        }
        hits.release();
        return stop(store);
    }

    /**
     * Without --load nothing in a directory that another process holds is touched: start() is called on a store that
     * loaded nothing, and must throw before it does anything. With --load it goes as in a broker: load, then start.
     */
    private int lockTest() throws Exception {
        boolean free = options.load || lockIsFree();
        DefaultMessageStore store = Release.open(options.storeConfig(directory));
        if (free && !store.load()) {
            return REFUSED;
        }
        boolean locked = false;
        try {
            store.start();
            locked = true;
        } catch (RuntimeException failure) {
            if (!isLockFailure(failure)) {
                throw failure;
            }
        }
        JSONObject line = new JSONObject(true);
        line.put("locked", locked);
        answer(line);
        return locked && free ? stop(store) : 0;
    }

    private int holdLock(long seconds) throws Exception {
        DefaultMessageStore store = Release.open(options.storeConfig(directory));
        int refusal = loadAndStart(store);
        if (refusal != 0) {
            return refusal;
        }
        JSONObject line = new JSONObject(true);
        line.put("ready", true);
        line.put("pid", ProcessHandle.current().pid());
        answer(line);
        answers.flush();
        // Ends early when the caller closes our standard input, so a test need not wait the whole time.
        Thread untilClosed = new Thread(StoreTool::drainInput);
        untilClosed.setDaemon(true);
        untilClosed.start();
        untilClosed.join(seconds * 1000);
        return options.halt ? HALTED : stop(store);
    }

    private static void drainInput() {
        try {
            while (System.in.read() >= 0) {
                // Only the end of the stream matters.
            }
        } catch (IOException closed) {
            // Same as its end.
        }
    }

    /**
     * Loads, starts, and waits until all that was recovered is dispatched. Returns 0 or the exit code of a refusal.
     *
     * <p>The lock is looked at first: RocketMQ takes it only after load(), which by then has deleted or truncated files
     * of a store that may be running. Only locktest --load goes that far.
     */
    private int loadAndStart(DefaultMessageStore store) throws Exception {
        if (!lockIsFree()) {
            System.err.println("another process holds the lock of " + directory);
            return LOCKED;
        }
        if (!store.load()) {
            System.err.println("load() refused the directory " + directory);
            return REFUSED;
        }
        try {
            store.start();
        } catch (RuntimeException failure) {
            if (!isLockFailure(failure)) {
                throw failure;
            }
            failure.printStackTrace();
            return LOCKED;
        }
        awaitDispatch(store);
        return 0;
    }

    private void awaitDispatch(DefaultMessageStore store) throws InterruptedException {
        long deadline = System.currentTimeMillis() + DISPATCH_WAIT_MS;
        while (store.dispatchBehindBytes() > 0) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("dispatch is still " + store.dispatchBehindBytes() + " bytes behind");
            }
            Thread.sleep(5);
        }
    }

    private int stop(DefaultMessageStore store) {
        store.shutdown();
        if (new File(directory, "abort").exists()) {
            System.err.println("shutdown() left the abort file");
            return UNCLEAN;
        }
        return 0;
    }

    private static boolean isLockFailure(RuntimeException failure) {
        return String.valueOf(failure.getMessage()).startsWith("Lock failed");
    }

    private boolean lockIsFree() throws Exception {
        File file = new File(directory, "lock");
        if (!file.exists()) {
            return true;
        }
        try (RandomAccessFile opened = new RandomAccessFile(file, "rw");
             FileLock lock = opened.getChannel().tryLock(0, 1, false)) {
            return lock != null;
        }
    }

    private TreeMap<String, TreeSet<Integer>> queuesOnDisk() {
        TreeMap<String, TreeSet<Integer>> queues = new TreeMap<>();
        for (File topic : children(new File(directory, "consumequeue"))) {
            TreeSet<Integer> ids = new TreeSet<>();
            for (File queue : children(topic)) {
                if (queue.getName().matches("[0-9]+")) {
                    ids.add(Integer.parseInt(queue.getName()));
                }
            }
            queues.put(topic.getName(), ids);
        }
        return queues;
    }

    private static List<File> children(File parent) {
        List<File> directories = new ArrayList<>();
        File[] found = parent.listFiles(File::isDirectory);
        if (found != null) {
            directories.addAll(List.of(found));
        }
        return directories;
    }

    private static MessageExt decode(SelectMappedBufferResult record) {
        return MessageDecoder.decode(record.getByteBuffer(), true, false);
    }

    private static JSONObject putResult(PutMessageResult result) {
        JSONObject line = new JSONObject(true);
        line.put("status", result.getPutMessageStatus().name());
        AppendMessageResult appended = result.getAppendMessageResult();
        if (appended != null) {
            line.put("queueOffset", appended.getLogicsOffset());
            line.put("wroteOffset", appended.getWroteOffset());
            line.put("wroteBytes", appended.getWroteBytes());
            line.put("msgId", appended.getMsgId());
            line.put("msgNum", appended.getMsgNum());
            line.put("storeTimestamp", appended.getStoreTimestamp());
        }
        return line;
    }

    private static JSONObject gap(String topic, int queueId, long offset, String status) {
        JSONObject line = new JSONObject(true);
        line.put("topic", topic);
        line.put("queueId", queueId);
        line.put("logicalOffset", offset);
        line.put("status", status);
        return line;
    }

    private void answerOffsets(DefaultMessageStore store) {
        JSONObject line = new JSONObject(true);
        line.put("maxPhyOffset", store.getMaxPhyOffset());
        line.put("minPhyOffset", store.getMinPhyOffset());
        answer(line);
    }

    private void answer(String kind, JSONObject content) {
        JSONObject line = new JSONObject(true);
        line.put(kind, content);
        answer(line);
    }

    private void answer(JSONObject line) {
        answers.println(JSON.toJSONString(line, SerializerFeature.WriteMapNullValue));
    }
}
