package penstock.interop.client;

import com.alibaba.fastjson.JSONObject;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** What differs in the 5.3 line: the package of one enumeration, an argument of one call, messages for a time. */
final class Release {
    private Release() {
    }

    static void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    /** Leaves the division of the queues to the broker, which says whether they are popped or pulled. */
    static void pop(DefaultMQPushConsumer consumer, long invisibleMs, int batch) {
        consumer.setClientRebalance(false);
        consumer.setPopInvisibleTime(invisibleMs);
        consumer.setPopBatchNums(batch);
    }

    static void createTopic(DefaultMQProducer producer, String topic, int queues) throws Exception {
        producer.createTopic(producer.getCreateTopicKey(), topic, queues, java.util.Collections.emptyMap());
    }

    static void time(Message message, JSONObject spec) {
        if (spec.containsKey("delaySec")) {
            message.setDelayTimeSec(spec.getLongValue("delaySec"));
        }
        if (spec.containsKey("delayMs")) {
            message.setDelayTimeMs(spec.getLongValue("delayMs"));
        }
        if (spec.containsKey("deliverMs")) {
            message.setDeliverTimeMs(spec.getLongValue("deliverMs"));
        }
    }

    static String recallHandle(SendResult result) {
        return result.getRecallHandle();
    }

    static String recall(DefaultMQProducer producer, String topic, String handle) throws Exception {
        return producer.recallMessage(topic, handle);
    }
}
