package penstock.interop;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;

/** Maps RocketMQ messages to and from the JSON lines that java_store.py speaks. Never touches a store. */
final class MessageJson {
    private MessageJson() {
    }

    static MessageExt single(JSONObject spec) throws UnknownHostException {
        MessageExt message = Release.newMessage();
        fillHeader(message, spec);
        message.setFlag(spec.getIntValue("flag"));
        message.setBody(body(spec));
        MessageAccessor.setProperties(message, properties(spec));
        return message;
    }

    /** The header (topic, queue, hosts, times) is the first element's; flag, body and properties are each one's own. */
    static MessageExtBatch batch(JSONArray specs) throws UnknownHostException {
        List<Message> inner = new ArrayList<>();
        for (int i = 0; i < specs.size(); i++) {
            JSONObject spec = specs.getJSONObject(i);
            Message message = new Message(spec.getString("topic"), body(spec));
            message.setFlag(spec.getIntValue("flag"));
            MessageAccessor.setProperties(message, properties(spec));
            inner.add(message);
        }
        MessageExtBatch batch = new MessageExtBatch();
        fillHeader(batch, specs.getJSONObject(0));
        batch.setBody(MessageDecoder.encodeMessages(inner));
        return batch;
    }

    static JSONObject describe(MessageExt message) {
        JSONObject line = new JSONObject(true);
        line.put("topic", message.getTopic());
        line.put("queueId", message.getQueueId());
        line.put("queueOffset", message.getQueueOffset());
        line.put("physicalOffset", message.getCommitLogOffset());
        line.put("storeSize", message.getStoreSize());
        line.put("bodyCrc", message.getBodyCRC());
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        line.put("bodyBase64", Base64.getEncoder().encodeToString(body));
        line.put("properties", message.getProperties() == null ? new LinkedHashMap<>() : message.getProperties());
        line.put("flag", message.getFlag());
        line.put("sysFlag", message.getSysFlag());
        line.put("bornTimestamp", message.getBornTimestamp());
        line.put("bornHost", hostText(message.getBornHost()));
        line.put("storeTimestamp", message.getStoreTimestamp());
        line.put("storeHost", hostText(message.getStoreHost()));
        line.put("reconsumeTimes", message.getReconsumeTimes());
        line.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        line.put("msgId", message.getMsgId());
        return line;
    }

    private static void fillHeader(MessageExt message, JSONObject spec) throws UnknownHostException {
        message.setTopic(spec.getString("topic"));
        message.setQueueId(spec.getIntValue("queueId"));
        message.setSysFlag(spec.getIntValue("sysFlag"));
        message.setBornTimestamp(spec.getLongValue("bornTimestamp"));
        message.setBornHost(host(spec.getString("bornHost")));
        message.setStoreHost(host(spec.getString("storeHost")));
        message.setReconsumeTimes(spec.getIntValue("reconsumeTimes"));
        message.setPreparedTransactionOffset(spec.getLongValue("preparedTransactionOffset"));
    }

    private static byte[] body(JSONObject spec) {
        return Base64.getDecoder().decode(spec.getString("bodyBase64"));
    }

    private static Map<String, String> properties(JSONObject spec) {
        Map<String, String> properties = new LinkedHashMap<>();
        JSONObject given = spec.getJSONObject("properties");
        if (given != null) {
            for (String name : given.keySet()) {
                properties.put(name, given.getString(name));
            }
        }
        return properties;
    }

    /** Takes "1.2.3.4:5" and "[::1]:5". Only literals: a name would mean a look-up on the network. */
    private static InetSocketAddress host(String text) throws UnknownHostException {
        int colon = text.lastIndexOf(':');
        String address = text.substring(0, colon);
        boolean v6 = address.startsWith("[") && address.endsWith("]");
        if (!v6 && !address.matches("[0-9]+(\\.[0-9]+){3}")) {
            throw new IllegalArgumentException("not an address literal with a port: " + text);
        }
        return new InetSocketAddress(InetAddress.getByName(address), Integer.parseInt(text.substring(colon + 1)));
    }

    private static String hostText(SocketAddress socketAddress) {
        InetSocketAddress host = (InetSocketAddress) socketAddress;
        String address = host.getAddress().getHostAddress();
        return (address.indexOf(':') < 0 ? address : "[" + address + "]") + ":" + host.getPort();
    }
}
