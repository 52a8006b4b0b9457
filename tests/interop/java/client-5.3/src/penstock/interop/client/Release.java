package penstock.interop.client;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** What differs in the 5.3 line: the package of one enumeration, an argument of one call. */
final class Release {
    private Release() {
    }

    static void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    static void createTopic(DefaultMQProducer producer, String topic, int queues) throws Exception {
        producer.createTopic(producer.getCreateTopicKey(), topic, queues, java.util.Collections.emptyMap());
    }
}
