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
import java.nio.channels.FileLock;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.store.AppendMessageResult;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;

/**
 * Drives Apache RocketMQ's own DefaultMessageStore on a directory and answers in JSON lines on standard output.
 *
 * <p>The rule: whatever is printed came out of RocketMQ's classes, never out of code of ours that reads the files.
 * Commands: write, read, locktest, holdlock, config; see java_store for their meaning. Exit codes: 0 done, 1 failed,
 * 3 load() refused the directory, 4 another process holds the lock, 5 a clean stop was refused, 9 halted on purpose.
 */
public final class StoreTool {
    private static final int REFUSED = 3;
    private static final int LOCKED = 4;
    private static final int UNCLEAN = 5;
    private static final int HALTED = 9;
    private static final long DISPATCH_WAIT_MS = 60_000;

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
            case "locktest":
                return lockTest();
            case "holdlock":
                return holdLock(Long.parseLong(options.words.get(2)));
            case "config":
                return rewriteConfig(options.words.get(2));
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
        // Queues are written behind the log: halted before they are, the directory would depend on how fast this machine is.
        awaitDispatch(store);
        answerOffsets(store);
        return options.halt ? HALTED : stop(store);
    }

    private int read() throws Exception {
        List<String> questions = options.words.size() < 3
            ? List.of()
            : Files.readAllLines(Paths.get(options.words.get(2)), StandardCharsets.UTF_8);
        DefaultMessageStore store = Release.open(options.storeConfig(directory));
        int refusal = loadAndStart(store);
        if (refusal != 0) {
            return refusal;
        }
        StoreReading reading = new StoreReading(store, directory, this::answer);
        reading.readQueues();
        for (String question : questions) {
            reading.ask(JSON.parseObject(question));
        }
        answerOffsets(store);
        return options.halt ? HALTED : stop(store);
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

    /** Each config file of the directory, read and written again by the class that RocketMQ keeps its content in. */
    private int rewriteConfig(String target) throws Exception {
        for (Map.Entry<String, Class<? extends RemotingSerializable>> file : Release.configClasses().entrySet()) {
            String text = Files.readString(Paths.get(directory, file.getKey()));
            RemotingSerializable content = RemotingSerializable.fromJson(text, file.getValue());
            Files.writeString(Paths.get(target, file.getKey()), content.toJson(true));
        }
        return 0;
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
