package penstock.interop;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.File;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.BiConsumer;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/** What a started store says about its content: every queue, and single questions by key or by position. */
final class StoreReading {
    private static final int QUERY_MAX = 64;

    private final DefaultMessageStore store;
    private final String directory;
    private final BiConsumer<String, JSONObject> answers;

    StoreReading(DefaultMessageStore store, String directory, BiConsumer<String, JSONObject> answers) {
        this.store = store;
        this.directory = directory;
        this.answers = answers;
    }

    void readQueues() throws Exception {
        for (Map.Entry<String, TreeSet<Integer>> topic : queuesOnDisk().entrySet()) {
            for (int queueId : topic.getValue()) {
                readQueue(topic.getKey(), queueId);
            }
        }
    }

    /** A question has a position, or a time in a queue, or a topic and a key; the answer repeats it. */
    void ask(JSONObject question) throws Exception {
        if (question.containsKey("time")) {
            question.put("found", Release.offsetByTime(
                store,
                question.getString("topic"),
                question.getIntValue("queueId"),
                question.getLongValue("time"),
                question.getString("boundary")));
            answers.accept("time", question);
            return;
        }
        if (question.containsKey("position")) {
            MessageExt message = store.lookMessageByOffset(question.getLongValue("position"));
            question.put("found", message == null ? null : MessageJson.describe(message));
            answers.accept("at", question);
            return;
        }
        QueryMessageResult hits = store.queryMessage(
            question.getString("topic"), question.getString("key"), QUERY_MAX, 0, Long.MAX_VALUE);
        JSONArray found = new JSONArray();
        for (ByteBuffer record : hits.getMessageBufferList()) {
            found.add(MessageJson.describe(MessageDecoder.decode(record, true, false)));
        }
        hits.release();
        question.put("found", found);
        answers.accept("query", question);
    }

    /** One message per call, so that the logical offset of each answer is known from the question. */
    private void readQueue(String topic, int queueId) throws Exception {
        long min = store.getMinOffsetInQueue(topic, queueId);
        long max = store.getMaxOffsetInQueue(topic, queueId);
        JSONObject range = place(topic, queueId);
        range.put("minOffset", min);
        range.put("maxOffset", max);
        answers.accept("queue", range);
        for (long offset = min; offset < max; offset++) {
            GetMessageResult got = store.getMessage("penstock-interop", topic, queueId, offset, 1, null);
            try {
                readEntry(topic, queueId, offset, got);
            } finally {
                got.release();
            }
        }
    }

    private void readEntry(String topic, int queueId, long offset, GetMessageResult got) throws Exception {
        List<SelectMappedBufferResult> found = got.getMessageMapedList();
        MessageExt message = found.isEmpty()
            ? null
            : MessageDecoder.decode(found.get(0).getByteBuffer(), true, false);
        QueueUnit unit = Release.unit(store, topic, queueId, offset);
        if (message == null || unit == null) {
            String undecodable = unit == null ? "NO_QUEUE_ENTRY" : "UNDECODABLE";
            JSONObject gap = place(topic, queueId);
            gap.put("logicalOffset", offset);
            gap.put("status", found.isEmpty() ? got.getStatus().name() : undecodable);
            answers.accept("gap", gap);
            return;
        }
        JSONObject line = MessageJson.describe(message);
        line.put("logicalOffset", offset);
        line.put("unitPhysicalOffset", unit.physicalOffset);
        line.put("unitSize", unit.size);
        line.put("tagsCode", unit.tagsCode);
        answers.accept("message", line);
    }

    private static JSONObject place(String topic, int queueId) {
        JSONObject line = new JSONObject(true);
        line.put("topic", topic);
        line.put("queueId", queueId);
        return line;
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
}
