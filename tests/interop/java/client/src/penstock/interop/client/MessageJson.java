package penstock.interop.client;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Maps the client's values to and from the JSON of the driver's commands. */
final class MessageJson {
    private MessageJson() {
    }

    /** {"body", "tags"?, "keys"?, "properties"?, "delay"?, "fill"?, "delaySec"?, "delayMs"?, "deliverMs"?}: "fill" repeats the body. */
    static Message message(String topic, JSONObject spec) {
        String body = spec.getString("body");
        if (spec.containsKey("fill")) {
            body = body.repeat(spec.getIntValue("fill"));
        }
        Message message = new Message(topic, body.getBytes(StandardCharsets.UTF_8));
        if (spec.containsKey("tags")) {
            message.setTags(spec.getString("tags"));
        }
        if (spec.containsKey("keys")) {
            message.setKeys(spec.getString("keys"));
        }
        if (spec.containsKey("delay")) {
            message.setDelayTimeLevel(spec.getIntValue("delay"));
        }
        Release.time(message, spec);
        if (spec.containsKey("properties")) {
            for (Map.Entry<String, Object> property : spec.getJSONObject("properties").entrySet()) {
                message.putUserProperty(property.getKey(), (String) property.getValue());
            }
        }
        return message;
    }

    static List<Message> messages(JSONObject command) {
        List<Message> messages = new ArrayList<>();
        JSONArray specs = command.getJSONArray("messages");
        for (int i = 0; i < specs.size(); i++) {
            messages.add(message(command.getString("topic"), specs.getJSONObject(i)));
        }
        return messages;
    }

    static JSONObject sendResult(SendResult result) {
        JSONObject line = new JSONObject(true);
        line.put("status", result.getSendStatus().name());
        line.put("msgId", result.getMsgId());
        line.put("offsetMsgId", result.getOffsetMsgId());
        line.put("queueId", result.getMessageQueue().getQueueId());
        line.put("broker", result.getMessageQueue().getBrokerName());
        line.put("queueOffset", result.getQueueOffset());
        line.put("region", result.getRegionId());
        line.put("traceOn", result.isTraceOn());
        line.put("recallHandle", Release.recallHandle(result));
        return line;
    }

    static JSONObject received(MessageExt message) {
        JSONObject line = new JSONObject(true);
        line.put("topic", message.getTopic());
        String body = message.getBody() == null ? "" : new String(message.getBody(), StandardCharsets.UTF_8);
        line.put("body", body.length() > 200 ? body.substring(0, 200) : body);
        line.put("bodyLength", message.getBody() == null ? 0 : message.getBody().length);
        line.put("tags", message.getTags());
        line.put("keys", message.getKeys());
        line.put("msgId", message.getMsgId());
        boolean isClientForm = message instanceof MessageClientExt;
        line.put("offsetMsgId", isClientForm ? ((MessageClientExt) message).getOffsetMsgId() : message.getMsgId());
        line.put("broker", message.getBrokerName());
        line.put("queueId", message.getQueueId());
        line.put("queueOffset", message.getQueueOffset());
        line.put("reconsumeTimes", message.getReconsumeTimes());
        line.put("bornTimestamp", message.getBornTimestamp());
        line.put("storeTimestamp", message.getStoreTimestamp());
        line.put("bornHost", message.getBornHostString());
        line.put("storeHost", String.valueOf(message.getStoreHost()).replaceFirst("^.*/", ""));
        line.put("sysFlag", message.getSysFlag());
        line.put("properties", new TreeMap<>(message.getProperties()));
        line.put("at", System.currentTimeMillis());
        line.put("thread", Thread.currentThread().getName());
        return line;
    }

    static JSONArray all(Collection<MessageExt> messages) {
        JSONArray lines = new JSONArray();
        messages.forEach(message -> lines.add(received(message)));
        return lines;
    }

    /** "topic@broker@queueId", which sorts and prints well. */
    static String queue(MessageQueue queue) {
        return queue.getTopic() + "@" + queue.getBrokerName() + "@" + queue.getQueueId();
    }
}
