package penstock.interop;

import java.io.IOException;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.body.ConsumerOffsetSerializeWrapper;
import org.apache.rocketmq.remoting.protocol.body.SubscriptionGroupWrapper;
import org.apache.rocketmq.remoting.protocol.body.TopicConfigSerializeWrapper;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** What differs in the 5.3 line: constructor, place of the inner message class, queue entry access. */
final class Release {
    private Release() {
    }

    static void logWarnings() {
        // resources/rmq.logback.xml has arranged it.
    }

    static DefaultMessageStore open(MessageStoreConfig config) throws IOException {
        // An absent topic config means an ordinary (SimpleCQ) queue. The HA service comes from META-INF/service.
        return new DefaultMessageStore(
            config,
            new BrokerStatsManager("penstock-interop", false),
            (topic, queueId, offset, tags, time, bitMap, properties) -> { },
            new BrokerConfig(),
            new ConcurrentHashMap<>());
    }

    /** A checksum of the whole record becomes its last property. */
    static void sealRecords(MessageStoreConfig config) {
        config.setEnabledAppendPropCRC(true);
    }

    /** Recovery takes a record without that checksum, or with a wrong one, for the end of the log. */
    static void checkSeals(MessageStoreConfig config) {
        config.setForceVerifyPropCRC(true);
    }

    /** Delay progress is missing: its class moved to the broker's own jar. */
    static Map<String, Class<? extends RemotingSerializable>> configClasses() {
        return Map.of(
            "topics.json", TopicConfigSerializeWrapper.class,
            "consumerOffset.json", ConsumerOffsetSerializeWrapper.class,
            "subscriptionGroup.json", SubscriptionGroupWrapper.class);
    }

    static MessageExt newMessage() {
        return new MessageExtBrokerInner();
    }

    static PutMessageResult put(DefaultMessageStore store, MessageExt message) {
        MessageExtBrokerInner inner = (MessageExtBrokerInner) message;
        inner.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        return store.putMessage(inner);
    }

    static long offsetByTime(DefaultMessageStore store, String topic, int queueId, long time, String boundary) {
        return store.getOffsetInQueueByTime(topic, queueId, time, BoundaryType.valueOf(boundary));
    }

    static QueueUnit unit(DefaultMessageStore store, String topic, int queueId, long offset) {
        ConsumeQueueInterface queue = store.getConsumeQueue(topic, queueId);
        CqUnit unit = queue == null ? null : queue.get(offset);
        return unit == null ? null : new QueueUnit(unit.getPos(), unit.getSize(), unit.getTagsCode());
    }
}
