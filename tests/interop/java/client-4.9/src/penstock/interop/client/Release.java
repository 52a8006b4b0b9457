package penstock.interop.client;

import com.alibaba.fastjson.JSONObject;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;

/** What differs in the 4.9 line: the package of one enumeration, an argument of one call, no messages for a time. */
final class Release {
    private Release() {
    }

    static void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    /** Leaves the division of the queues to the broker, which says whether they are popped or pulled. */
    static void pop(DefaultMQPushConsumer consumer, long invisibleMs, int batch) {
        throw new UnsupportedOperationException("there is no POP in 4.9");
    }

    static void createTopic(DefaultMQProducer producer, String topic, int queues) throws Exception {
        producer.createTopic(producer.getCreateTopicKey(), topic, queues);
    }

    static void time(Message message, JSONObject spec) {
        if (spec.containsKey("delaySec") || spec.containsKey("delayMs") || spec.containsKey("deliverMs")) {
            throw new UnsupportedOperationException("this release knows levels only");
        }
    }

    static String recallHandle(SendResult result) {
        return null;
    }

    static String recall(DefaultMQProducer producer, String topic, String handle) {
        throw new UnsupportedOperationException("this release recalls nothing");
    }
}
