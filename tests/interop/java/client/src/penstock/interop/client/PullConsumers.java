package penstock.interop.client;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Both pull consumers: the old one, a call per pull, and the lite one, which polls. */
@SuppressWarnings("deprecation")
final class PullConsumers {
    private final Named<DefaultMQPullConsumer> pullers = new Named<>(DefaultMQPullConsumer::shutdown);
    private final Named<DefaultLitePullConsumer> lites = new Named<>(DefaultLitePullConsumer::shutdown);

    /** {name, group, nameserver}. */
    JSONObject createPuller(JSONObject command) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(command.getString("group"));
        Named.configure(consumer, command);
        consumer.start();
        pullers.put(command, consumer);
        return new JSONObject();
    }

    /**
     * {name, topic, queue, offset, max, expression?, commit?, time?}: one pull, with all that can be asked about the
     * queue. "commit" stores the next offset, "time" is looked up.
     */
    JSONObject pull(JSONObject command) throws Exception {
        DefaultMQPullConsumer consumer = pullers.get(command);
        MessageQueue queue = queue(consumer, command);
        String expression = command.containsKey("expression") ? command.getString("expression") : "*";
        PullResult result = consumer.pull(queue, expression, command.getLongValue("offset"), command.getIntValue("max"));
        JSONObject answer = new JSONObject(true);
        answer.put("status", result.getPullStatus().name());
        answer.put("next", result.getNextBeginOffset());
        answer.put("min", result.getMinOffset());
        answer.put("max", result.getMaxOffset());
        answer.put("messages", result.getMsgFoundList() == null ? new JSONArray() : MessageJson.all(result.getMsgFoundList()));
        answer.put("minOffset", consumer.minOffset(queue));
        answer.put("maxOffset", consumer.maxOffset(queue));
        answer.put("earliest", consumer.earliestMsgStoreTime(queue));
        if (command.containsKey("time")) {
            answer.put("byTime", consumer.searchOffset(queue, command.getLongValue("time")));
        }
        if (command.getBooleanValue("commit")) {
            consumer.getDefaultMQPullConsumerImpl().getOffsetStore()
                .updateConsumeOffsetToBroker(queue, result.getNextBeginOffset(), false);
        }
        answer.put("committed", consumer.fetchConsumeOffset(queue, true));
        return answer;
    }

    private static MessageQueue queue(DefaultMQPullConsumer consumer, JSONObject command) throws Exception {
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(command.getString("topic"))) {
            if (queue.getQueueId() == command.getIntValue("queue")) {
                return queue;
            }
        }
        throw new IllegalArgumentException("no queue " + command.getIntValue("queue"));
    }

    /** {name, group, nameserver, topic, expression?, sql?, assign?}: "assign" takes all queues itself instead of a share. */
    JSONObject createLite(JSONObject command) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(command.getString("group"));
        Named.configure(consumer, command);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        if (!command.getBooleanValue("assign")) {
            String expression = command.containsKey("expression") ? command.getString("expression") : "*";
            consumer.subscribe(command.getString("topic"), command.containsKey("sql")
                ? MessageSelector.bySql(command.getString("sql")) : MessageSelector.byTag(expression));
        }
        consumer.start();
        if (command.getBooleanValue("assign")) {
            consumer.assign(consumer.fetchMessageQueues(command.getString("topic")));
        }
        lites.put(command, consumer);
        return new JSONObject();
    }

    /** {name, count, timeout, commit?}: polls until there are that many or the time is over. */
    JSONObject poll(JSONObject command) throws Exception {
        DefaultLitePullConsumer consumer = lites.get(command);
        List<MessageExt> found = new ArrayList<>();
        long end = System.currentTimeMillis() + command.getLongValue("timeout");
        while (found.size() < command.getIntValue("count") && System.currentTimeMillis() < end) {
            found.addAll(consumer.poll(200));
        }
        if (command.getBooleanValue("commit")) {
            consumer.commitSync();
        }
        JSONObject answer = new JSONObject(true);
        answer.put("messages", MessageJson.all(found));
        return answer;
    }

    /** {name, topic, queue, offset}. */
    JSONObject seek(JSONObject command) throws Exception {
        DefaultLitePullConsumer consumer = lites.get(command);
        for (MessageQueue queue : consumer.fetchMessageQueues(command.getString("topic"))) {
            if (queue.getQueueId() == command.getIntValue("queue")) {
                consumer.seek(queue, command.getLongValue("offset"));
                return new JSONObject();
            }
        }
        throw new IllegalArgumentException("no queue " + command.getIntValue("queue"));
    }

    boolean close(String name) {
        return pullers.close(name) || lites.close(name);
    }

    List<Thread> closing() {
        List<Thread> threads = pullers.closing();
        threads.addAll(lites.closing());
        return threads;
    }
}
