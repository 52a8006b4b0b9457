package penstock.interop.access;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import penstock.interop.driver.Driver;

/**
 * The unmodified RocketMQ client with its own signing hook, as a driver.
 *
 * <p>Clients are made with {name, group, nameserver, accessKey?, secretKey?, token?, tamper?, tls?}. With "tamper" the body
 * of every request that has one is changed after it was signed, as somebody on the way would.
 */
public final class AccessTool {
    private static final Map<String, DefaultMQProducer> PRODUCERS = new ConcurrentHashMap<>();
    private static final Map<String, List<String>> RECEIVED = new ConcurrentHashMap<>();
    private static final Map<String, DefaultMQPushConsumer> CONSUMERS = new ConcurrentHashMap<>();

    private AccessTool() {
    }

    public static void main(String[] arguments) throws Exception {
        new Driver()
            .on("producer", AccessTool::producer)
            .on("send", AccessTool::send)
            .on("consumer", AccessTool::consumer)
            .on("received", AccessTool::received)
            .on("close", AccessTool::close)
            .serve(Path.of(arguments[0]));
    }

    private static JSONObject producer(JSONObject command) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(command.getString("group"), hook(command));
        configure(producer, command);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        PRODUCERS.put(command.getString("name"), producer);
        return new JSONObject();
    }

    /** {name, topic, bodies, batch?}: the ids. */
    private static JSONObject send(JSONObject command) throws Exception {
        DefaultMQProducer producer = PRODUCERS.get(command.getString("name"));
        List<Message> messages = new CopyOnWriteArrayList<>();
        for (String body : command.getJSONArray("bodies").toJavaList(String.class)) {
            messages.add(new Message(command.getString("topic"), body.getBytes(StandardCharsets.UTF_8)));
        }
        JSONArray ids = new JSONArray();
        if (command.getBooleanValue("batch")) {
            ids.add(producer.send(messages).getMsgId());
        } else {
            for (Message message : messages) {
                SendResult result = producer.send(message);
                ids.add(result.getMsgId());
            }
        }
        JSONObject answer = new JSONObject();
        answer.put("ids", ids);
        return answer;
    }

    private static JSONObject consumer(JSONObject command) throws Exception {
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(command.getString("group"), hook(command), new AllocateMessageQueueAveragely());
        configure(consumer, command);
        List<String> bodies = new CopyOnWriteArrayList<>();
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(command.getString("topic"), "*");
        boolean fails = command.getBooleanValue("fail");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                bodies.add(new String(message.getBody(), StandardCharsets.UTF_8) + "@" + message.getReconsumeTimes());
            }
            context.setDelayLevelWhenNextConsume(1);
            boolean again = fails && messages.get(0).getReconsumeTimes() == 0;
            return again ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        RECEIVED.put(command.getString("name"), bodies);
        CONSUMERS.put(command.getString("name"), consumer);
        return new JSONObject();
    }

    private static JSONObject received(JSONObject command) {
        JSONObject answer = new JSONObject();
        answer.put("bodies", new JSONArray(List.copyOf(RECEIVED.get(command.getString("name")))));
        return answer;
    }

    private static JSONObject close(JSONObject command) {
        DefaultMQProducer producer = PRODUCERS.remove(command.getString("name"));
        if (producer != null) {
            producer.shutdown();
        }
        DefaultMQPushConsumer consumer = CONSUMERS.remove(command.getString("name"));
        if (consumer != null) {
            consumer.shutdown();
        }
        return new JSONObject();
    }

    private static void configure(ClientConfig config, JSONObject command) {
        config.setNamesrvAddr(command.getString("nameserver"));
        config.setInstanceName(command.getString("name"));
        config.setUseTLS(command.getBooleanValue("tls"));
        config.setPollNameServerInterval(500);
        config.setHeartbeatBrokerInterval(1000);
    }

    private static RPCHook hook(JSONObject command) {
        if (!command.containsKey("accessKey")) {
            return null;
        }
        String key = command.getString("accessKey");
        String secret = command.getString("secretKey");
        String token = command.getString("token");
        SessionCredentials credentials =
            token == null ? new SessionCredentials(key, secret) : new SessionCredentials(key, secret, token);
        RPCHook signing = new AclClientRPCHook(credentials);
        return command.getBooleanValue("tamper") ? new Tampering(signing) : signing;
    }

    /** Somebody on the way: the signature stays, the body does not. */
    private static final class Tampering implements RPCHook {
        private final RPCHook signing;

        Tampering(RPCHook signing) {
            this.signing = signing;
        }

        @Override
        public void doBeforeRequest(String address, RemotingCommand request) {
            signing.doBeforeRequest(address, request);
            if (request.getBody() != null && request.getBody().length > 0) {
                byte[] body = request.getBody().clone();
                body[0] ^= 1;
                request.setBody(body);
            }
        }

        @Override
        public void doAfterResponse(String address, RemotingCommand request, RemotingCommand response) {
            signing.doAfterResponse(address, request, response);
        }
    }
}
