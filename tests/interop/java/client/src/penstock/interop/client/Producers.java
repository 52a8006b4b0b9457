package penstock.interop.client;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import penstock.interop.driver.Driver;

/** Everything that a producer can do, and the look-ups that it offers. */
final class Producers {
    private final Named<DefaultMQProducer> running = new Named<>(DefaultMQProducer::shutdown);

    /** {name, group, nameserver, timeout?}. */
    JSONObject create(JSONObject command) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(command.getString("group"), command.getBooleanValue("trace"), null);
        Named.configure(producer, command);
        producer.start();
        running.put(command, producer);
        return new JSONObject();
    }

    /** {name, topic, messages, how: sync | async | oneway | batch, queue?: id, key?: chooses the queue by its hash}. */
    JSONObject send(JSONObject command) throws Exception {
        DefaultMQProducer producer = running.get(command);
        List<Message> messages = MessageJson.messages(command);
        JSONArray results = new JSONArray();
        switch (command.getString("how")) {
            case "sync":
                for (Message message : messages) {
                    results.add(MessageJson.sendResult(sendOne(producer, message, command)));
                }
                break;
            case "async":
                results.addAll(sendAsync(producer, messages));
                break;
            case "oneway":
                for (Message message : messages) {
                    producer.sendOneway(message);
                }
                break;
            case "batch":
                results.add(MessageJson.sendResult(producer.send(messages)));
                break;
            default:
                throw new IllegalArgumentException("how is it to be sent: " + command.getString("how"));
        }
        JSONObject answer = new JSONObject(true);
        answer.put("results", results);
        return answer;
    }

    private static SendResult sendOne(DefaultMQProducer producer, Message message, JSONObject command) throws Exception {
        if (command.containsKey("queue")) {
            return producer.send(message, queue(producer, command));
        }
        if (command.containsKey("key")) {
            return producer.send(
                message,
                (queues, sent, key) -> queues.get(Math.floorMod(key.hashCode(), queues.size())),
                command.getString("key"));
        }
        return producer.send(message);
    }

    private static MessageQueue queue(DefaultMQProducer producer, JSONObject command) throws Exception {
        for (MessageQueue queue : producer.fetchPublishMessageQueues(command.getString("topic"))) {
            if (queue.getQueueId() == command.getIntValue("queue")) {
                return queue;
            }
        }
        throw new IllegalArgumentException("no queue " + command.getIntValue("queue"));
    }

    private static List<JSONObject> sendAsync(DefaultMQProducer producer, List<Message> messages) throws Exception {
        List<JSONObject> results = Collections.synchronizedList(new ArrayList<>(Collections.nCopies(messages.size(), null)));
        CountDownLatch open = new CountDownLatch(messages.size());
        for (int i = 0; i < messages.size(); i++) {
            int at = i;
            producer.send(messages.get(i), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    results.set(at, MessageJson.sendResult(result));
                    open.countDown();
                }

                @Override
                public void onException(Throwable thrown) {
                    results.set(at, Driver.failure(thrown));
                    open.countDown();
                }
            });
        }
        if (!open.await(20, TimeUnit.SECONDS)) {
            throw new IllegalStateException(open.getCount() + " sends were not answered");
        }
        return results;
    }

    /**
     * {name, topic, messages with one element, timeout}: a request that a consumer replies to. With a callback, because
     * the blocking form of 5.3.3 gives up as soon as the request is stored; at that moment the callback is called too,
     * with nothing.
     */
    JSONObject request(JSONObject command) throws Exception {
        Message request = MessageJson.messages(command).get(0);
        CompletableFuture<Message> reply = new CompletableFuture<>();
        running.get(command).request(request, new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                if (message != null) {
                    reply.complete(message);
                }
            }

            @Override
            public void onException(Throwable thrown) {
                reply.completeExceptionally(thrown);
            }
        }, command.getLongValue("timeout"));
        Message message = reply.get(command.getLongValue("timeout"), TimeUnit.MILLISECONDS);
        JSONObject answer = new JSONObject(true);
        answer.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        answer.put("properties", message.getProperties());
        return answer;
    }

    /** {name, topic, handle}: takes back a message that waits for its time. */
    JSONObject recall(JSONObject command) throws Exception {
        JSONObject answer = new JSONObject(true);
        answer.put("msgId", Release.recall(running.get(command), command.getString("topic"), command.getString("handle")));
        return answer;
    }

    /** {name, topic, id}: a message by its id, an offset id or a unique one. */
    JSONObject view(JSONObject command) throws Exception {
        return MessageJson.received(running.get(command).viewMessage(command.getString("topic"), command.getString("id")));
    }

    /** {name, topic, key, max, begin?, end?}. */
    JSONObject query(JSONObject command) throws Exception {
        long end = command.containsKey("end") ? command.getLongValue("end") : System.currentTimeMillis() + 60_000;
        QueryResult found = running.get(command).queryMessage(
            command.getString("topic"),
            command.getString("key"),
            command.getIntValue("max"),
            command.getLongValue("begin"),
            end);
        JSONObject answer = new JSONObject(true);
        answer.put("messages", MessageJson.all(found.getMessageList()));
        answer.put("indexed", found.getIndexLastUpdateTimestamp());
        return answer;
    }

    /** {name, topic, queues}: as a producer may create one, by the template topic. */
    JSONObject createTopic(JSONObject command) throws Exception {
        Release.createTopic(running.get(command), command.getString("topic"), command.getIntValue("queues"));
        return new JSONObject();
    }

    /**
     * {name, topic, seconds, file}: sync sends of numbered bodies, one after the other, for that long. Each number that
     * was acknowledged is a line of the file, written before the next is sent; failures are counted and not repeated.
     */
    JSONObject flood(JSONObject command) throws Exception {
        DefaultMQProducer producer = running.get(command);
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos((long) (command.getDoubleValue("seconds") * 1000));
        int sent = 0;
        int failed = 0;
        try (var acknowledged = Files.newBufferedWriter(Path.of(command.getString("file")))) {
            for (int number = 0; System.nanoTime() < end; number++) {
                try {
                    Message message = new Message(command.getString("topic"), ("n" + number).getBytes());
                    producer.send(message);
                    acknowledged.write("n" + number + "\n");
                    sent++;
                } catch (IOException fileFault) {
                    throw fileFault;
                } catch (Exception refused) {
                    failed++;
                    Thread.sleep(20);
                }
            }
        }
        JSONObject answer = new JSONObject(true);
        answer.put("sent", sent);
        answer.put("failed", failed);
        return answer;
    }

    boolean close(String name) {
        return running.close(name);
    }

    List<Thread> closing() {
        return running.closing();
    }
}
