package penstock.interop;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Map;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.protocol.body.ConsumerOffsetSerializeWrapper;
import org.apache.rocketmq.common.protocol.body.SubscriptionGroupWrapper;
import org.apache.rocketmq.common.protocol.body.TopicConfigSerializeWrapper;
import org.apache.rocketmq.logging.inner.Level;
import org.apache.rocketmq.logging.inner.Logger;
import org.apache.rocketmq.logging.inner.LoggingBuilder;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.schedule.DelayOffsetSerializeWrapper;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** What differs in the 4.9 line: constructor, place of the inner message class, queue entry access. */
final class Release {
    private Release() {
    }

    /** Warnings of the store go to standard error, where java_store.py quotes them when a command fails. */
    static void logWarnings() {
        Logger root = Logger.getRootLogger();
        root.setLevel(Level.WARN);
        root.addAppender(LoggingBuilder.newAppenderBuilder()
            .withConsoleAppender(LoggingBuilder.SYSTEM_ERR)
            .withLayout(LoggingBuilder.newLayoutBuilder().withDefaultLayout().build())
            .build());
    }

    static DefaultMessageStore open(MessageStoreConfig config) throws IOException, ReflectiveOperationException {
        DefaultMessageStore store = new DefaultMessageStore(
            config,
            new BrokerStatsManager("penstock-interop", false),
            (topic, queueId, offset, tags, time, bitMap, properties) -> { },
            new BrokerConfig());
        Object haService = store.getHaService();
        Loopback.pin(Loopback.field(haService.getClass(), "acceptSocketService").get(haService));
        return store;
    }

    static void sealRecords(MessageStoreConfig config) {
        throw new UnsupportedOperationException("the 4.9 line does not seal records");
    }

    static void checkSeals(MessageStoreConfig config) {
        throw new UnsupportedOperationException("the 4.9 line does not know sealed records");
    }

    static Map<String, Class<? extends RemotingSerializable>> configClasses() {
        return Map.of(
            "topics.json", TopicConfigSerializeWrapper.class,
            "consumerOffset.json", ConsumerOffsetSerializeWrapper.class,
            "subscriptionGroup.json", SubscriptionGroupWrapper.class,
            "delayOffset.json", DelayOffsetSerializeWrapper.class);
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
        throw new UnsupportedOperationException("the 4.9 line has no boundaries: of equal times it takes any");
    }

    static QueueUnit unit(DefaultMessageStore store, String topic, int queueId, long offset) {
        ConsumeQueue queue = store.getConsumeQueue(topic, queueId);
        SelectMappedBufferResult found = queue == null ? null : queue.getIndexBuffer(offset);
        if (found == null) {
            return null;
        }
        try {
            ByteBuffer entry = found.getByteBuffer();
            return new QueueUnit(entry.getLong(), entry.getInt(), entry.getLong());
        } finally {
            found.release();
        }
    }
}
