package penstock.interop.client;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Push consumers whose listeners note what they are given and fail as they were told to. */
final class PushConsumers {
    /** One consumer and what it was given so far. */
    private static final class Running {
        final DefaultMQPushConsumer consumer;
        final JSONArray received = new JSONArray();
        final DefaultMQProducer replier;

        Running(DefaultMQPushConsumer consumer, DefaultMQProducer replier) {
            this.consumer = consumer;
            this.replier = replier;
        }

        synchronized void note(JSONObject message) {
            received.add(message);
            notifyAll();
        }

        synchronized JSONArray await(int count, long timeoutMs) throws InterruptedException {
            long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs);
            while (received.size() < count) {
                long left = TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime());
                if (left <= 0) {
                    break;
                }
                wait(left);
            }
            return new JSONArray(new ArrayList<>(received));
        }

        void stop() {
            consumer.shutdown();
            if (replier != null) {
                replier.shutdown();
            }
        }
    }

    private final Named<Running> running = new Named<>(Running::stop);

    /**
     * {name, group, nameserver, topic, expression?, sql?, broadcast?, orderly?, from?: first | last, fail?: how many times each
     * message is refused, tries?: most deliveries after the first, delay?: level asked for, sleep?: ms, reply?, trace?,
     * pop?: invisible time in ms, batch?: messages of one pop}.
     */
    JSONObject create(JSONObject command) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(command.getString("group"), command.getBooleanValue("trace"), null);
        Named.configure(consumer, command);
        consumer.setConsumeFromWhere("last".equals(command.getString("from"))
            ? ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET : ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (command.getBooleanValue("broadcast")) {
            Release.broadcast(consumer);
        }
        if (command.containsKey("tries")) {
            consumer.setMaxReconsumeTimes(command.getIntValue("tries"));
        }
        if (command.containsKey("pop")) {
            Release.pop(consumer, command.getLongValue("pop"), command.containsKey("batch") ? command.getIntValue("batch") : 32);
        }
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.setSuspendCurrentQueueTimeMillis(100);
        String expression = command.containsKey("expression") ? command.getString("expression") : "*";
        consumer.subscribe(command.getString("topic"), command.containsKey("sql")
            ? MessageSelector.bySql(command.getString("sql")) : MessageSelector.byTag(expression));
        Running client = new Running(consumer, command.getBooleanValue("reply") ? replier(command) : null);
        if (command.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> inOrder(client, command, messages, context));
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> take(client, command, messages, context));
        }
        consumer.start();
        running.put(command, client);
        return new JSONObject();
    }

    private static DefaultMQProducer replier(JSONObject command) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(command.getString("group") + "-replies");
        Named.configure(producer, command);
        producer.start();
        return producer;
    }

    private static ConsumeConcurrentlyStatus take(
            Running client, JSONObject command, List<MessageExt> messages, ConsumeConcurrentlyContext context) {
        context.setDelayLevelWhenNextConsume(command.getIntValue("delay"));
        boolean isRefused = false;
        for (MessageExt message : messages) {
            client.note(MessageJson.received(message));
            isRefused |= message.getReconsumeTimes() < command.getIntValue("fail");
            reply(client, message);
        }
        pause(command);
        return isRefused ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    private static ConsumeOrderlyStatus inOrder(
            Running client, JSONObject command, List<MessageExt> messages, ConsumeOrderlyContext context) {
        boolean isRefused = false;
        for (MessageExt message : messages) {
            client.note(MessageJson.received(message));
            isRefused |= message.getReconsumeTimes() < command.getIntValue("fail");
        }
        pause(command);
        return isRefused ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
    }

    private static void reply(Running client, MessageExt message) {
        if (client.replier == null) {
            return;
        }
        try {
            Message reply = MessageUtil.createReplyMessage(message, ("re: " + new String(message.getBody())).getBytes());
            client.replier.send(reply, 3000);
        } catch (Exception failed) {
            throw new IllegalStateException(failed);
        }
    }

    private static void pause(JSONObject command) {
        try {
            Thread.sleep(command.getLongValue("sleep"));
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    /** {name, count, timeout}: what came so far, once there are that many or the time is over. */
    JSONObject received(JSONObject command) throws Exception {
        JSONObject answer = new JSONObject(true);
        answer.put("messages", running.get(command).await(command.getIntValue("count"), command.getLongValue("timeout")));
        return answer;
    }

    /** {name}: the queues that are this consumer's share now. */
    JSONObject assigned(JSONObject command) {
        List<String> queues = new ArrayList<>();
        DefaultMQPushConsumer consumer = running.get(command).consumer;
        for (MessageQueue queue : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
            queues.add(MessageJson.queue(queue));
        }
        queues.sort(null);
        JSONObject answer = new JSONObject(true);
        answer.put("queues", queues);
        return answer;
    }

    boolean close(String name) {
        return running.close(name);
    }

    List<Thread> closing() {
        return running.closing();
    }
}
