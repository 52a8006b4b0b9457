package penstock.interop.grpc;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import penstock.interop.driver.Driver;

/** The unmodified gRPC client of RocketMQ 5, as a driver. */
public final class GrpcTool {
    private final ClientServiceProvider provider = ClientServiceProvider.loadService();
    private final Map<String, Producer> producers = new ConcurrentHashMap<>();
    private final Map<String, SimpleConsumer> readers = new ConcurrentHashMap<>();
    private final Map<String, PushConsumer> pushers = new ConcurrentHashMap<>();
    private final Map<String, List<JSONObject>> noted = new ConcurrentHashMap<>();
    private final Map<String, MessageView> views = new ConcurrentHashMap<>();

    private GrpcTool() {
    }

    public static void main(String[] arguments) throws Exception {
        GrpcTool tool = new GrpcTool();
        new Driver()
            .on("producer", tool::producer)
            .on("send", tool::send)
            .on("transaction", tool::transaction)
            .on("recall", tool::recall)
            .on("simple", tool::simple)
            .on("receive", tool::receive)
            .on("ack", tool::ack)
            .on("change", tool::change)
            .on("push", tool::push)
            .on("noted", tool::noted)
            .on("close", tool::close)
            .serve(Path.of(arguments[0]));
    }

    private static ClientConfiguration configuration(JSONObject command) {
        return ClientConfiguration.newBuilder()
            .setEndpoints(command.getString("endpoints"))
            .enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(5))
            .build();
    }

    /** {name, endpoints, topic, check?: commit | rollback, what questions about transactions are answered with}. */
    private JSONObject producer(JSONObject command) throws Exception {
        String name = command.getString("name");
        noted.put(name, new CopyOnWriteArrayList<>());
        ProducerBuilder builder = provider.newProducerBuilder()
            .setClientConfiguration(configuration(command))
            .setTopics(command.getString("topic"));
        if (command.containsKey("check")) {
            TransactionResolution answer = TransactionResolution.valueOf(command.getString("check").toUpperCase());
            builder.setTransactionChecker(message -> {
                noted.get(name).add(received(message));
                return answer;
            });
        }
        producers.put(name, builder.build());
        return new JSONObject();
    }

    private Message message(JSONObject command, JSONObject spec) {
        MessageBuilder builder = provider.newMessageBuilder()
            .setTopic(command.getString("topic"))
            .setBody(spec.getString("body").getBytes(StandardCharsets.UTF_8));
        if (spec.containsKey("tag")) {
            builder.setTag(spec.getString("tag"));
        }
        if (spec.containsKey("keys")) {
            builder.setKeys(spec.getString("keys"));
        }
        if (spec.containsKey("group")) {
            builder.setMessageGroup(spec.getString("group"));
        }
        if (spec.containsKey("deliverMs")) {
            builder.setDeliveryTimestamp(spec.getLongValue("deliverMs"));
        }
        if (spec.containsKey("properties")) {
            spec.getJSONObject("properties").forEach((key, value) -> builder.addProperty(key, (String) value));
        }
        return builder.build();
    }

    private static JSONObject receipt(SendReceipt receipt) {
        JSONObject line = new JSONObject(true);
        line.put("msgId", receipt.getMessageId().toString());
        line.put("recallHandle", receipt.getRecallHandle());
        return line;
    }

    /** {name, topic, messages: [{body, tag?, keys?, group?, deliverMs?, properties?}]}: one after the other. */
    private JSONObject send(JSONObject command) throws Exception {
        JSONArray results = new JSONArray();
        JSONArray specs = command.getJSONArray("messages");
        for (int i = 0; i < specs.size(); i++) {
            SendReceipt sent = producers.get(command.getString("name")).send(message(command, specs.getJSONObject(i)));
            results.add(receipt(sent));
        }
        return answer("results", results);
    }

    /** {name, topic, messages, end: commit | rollback | none}: each message in a transaction of its own. */
    private JSONObject transaction(JSONObject command) throws Exception {
        JSONArray specs = command.getJSONArray("messages");
        Producer producer = producers.get(command.getString("name"));
        JSONArray results = new JSONArray();
        for (int i = 0; i < specs.size(); i++) {
            Transaction transaction = producer.beginTransaction();
            results.add(receipt(producer.send(message(command, specs.getJSONObject(i)), transaction)));
            switch (command.getString("end")) {
                case "commit":
                    transaction.commit();
                    break;
                case "rollback":
                    transaction.rollback();
                    break;
                default:
                    // Left open: the broker asks.
            }
        }
        return answer("results", results);
    }

    /** {name, topic, handle}. */
    private JSONObject recall(JSONObject command) throws Exception {
        Producer producer = producers.get(command.getString("name"));
        String id = producer.recallMessage(command.getString("topic"), command.getString("handle")).getMessageId().toString();
        return answer("msgId", id);
    }

    private static FilterExpression filter(JSONObject command) {
        if (command.containsKey("sql")) {
            return new FilterExpression(command.getString("sql"), FilterExpressionType.SQL92);
        }
        return new FilterExpression(command.containsKey("tag") ? command.getString("tag") : "*");
    }

    /** {name, endpoints, group, topic, tag?, sql?, waitMs}. */
    private JSONObject simple(JSONObject command) throws Exception {
        readers.put(command.getString("name"), provider.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration(command))
            .setConsumerGroup(command.getString("group"))
            .setAwaitDuration(Duration.ofMillis(command.getLongValue("waitMs")))
            .setSubscriptionExpressions(Collections.singletonMap(command.getString("topic"), filter(command)))
            .build());
        return new JSONObject();
    }

    /** {name, count, invisibleMs}: one request; what it brought can be acknowledged by message id. */
    private JSONObject receive(JSONObject command) throws Exception {
        SimpleConsumer reader = readers.get(command.getString("name"));
        Duration invisible = Duration.ofMillis(command.getLongValue("invisibleMs"));
        JSONArray lines = new JSONArray();
        for (MessageView view : reader.receive(command.getIntValue("count"), invisible)) {
            views.put(view.getMessageId().toString(), view);
            lines.add(received(view));
        }
        return answer("messages", lines);
    }

    /** {name, msgId}. */
    private JSONObject ack(JSONObject command) throws Exception {
        readers.get(command.getString("name")).ack(views.get(command.getString("msgId")));
        return new JSONObject();
    }

    /** {name, msgId, invisibleMs}: afterwards the client acknowledges with the new handle. */
    private JSONObject change(JSONObject command) throws Exception {
        Duration invisible = Duration.ofMillis(command.getLongValue("invisibleMs"));
        readers.get(command.getString("name")).changeInvisibleDuration(views.get(command.getString("msgId")), invisible);
        return new JSONObject();
    }

    /** {name, endpoints, group, topic, tag?, sql?, fail?: how often each message is refused}. */
    private JSONObject push(JSONObject command) throws Exception {
        String name = command.getString("name");
        noted.put(name, new CopyOnWriteArrayList<>());
        pushers.put(name, provider.newPushConsumerBuilder()
            .setClientConfiguration(configuration(command))
            .setConsumerGroup(command.getString("group"))
            .setSubscriptionExpressions(Collections.singletonMap(command.getString("topic"), filter(command)))
            .setMessageListener(view -> {
                noted.get(name).add(received(view));
                boolean isRefused = view.getDeliveryAttempt() <= command.getIntValue("fail");
                return isRefused ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            })
            .build());
        return new JSONObject();
    }

    /** {name}: what a push consumer was given, or what a producer was asked about. */
    private JSONObject noted(JSONObject command) {
        return answer("messages", noted.get(command.getString("name")));
    }

    private static JSONObject received(MessageView view) {
        JSONObject line = new JSONObject(true);
        byte[] body = new byte[view.getBody().remaining()];
        view.getBody().get(body);
        line.put("msgId", view.getMessageId().toString());
        line.put("body", new String(body, StandardCharsets.UTF_8));
        line.put("tag", view.getTag().orElse(null));
        line.put("keys", view.getKeys());
        line.put("group", view.getMessageGroup().orElse(null));
        line.put("attempt", view.getDeliveryAttempt());
        line.put("properties", new TreeMap<>(view.getProperties()));
        line.put("deliverMs", view.getDeliveryTimestamp().orElse(null));
        line.put("at", System.currentTimeMillis());
        return line;
    }

    /** {name}. */
    private JSONObject close(JSONObject command) throws Exception {
        String name = command.getString("name");
        for (Map<String, ? extends AutoCloseable> running : List.of(producers, readers, pushers)) {
            AutoCloseable found = running.remove(name);
            if (found != null) {
                found.close();
            }
        }
        return new JSONObject();
    }

    private static JSONObject answer(String name, Object value) {
        JSONObject answer = new JSONObject(true);
        answer.put(name, value);
        return answer;
    }
}
