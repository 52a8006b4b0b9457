package penstock.interop.admin;

import com.alibaba.fastjson.JSONObject;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.netty.TlsSystemConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** Prints RocketMQ's default settings: {class: {setting: value as text}}. */
public final class Defaults {
    private Defaults() {
    }

    public static void main(String[] arguments) throws Exception {
        JSONObject found = new JSONObject(true);
        Object[] configurations = {
            new BrokerConfig(), new MessageStoreConfig(), new NamesrvConfig(), new NettyServerConfig(), new NettyClientConfig(),
            new DefaultMQProducer("group"), new DefaultMQPushConsumer("group"),
        };
        for (Object configuration : configurations) {
            found.put(configuration.getClass().getSimpleName(), settings(configuration));
        }
        JSONObject system = new JSONObject(true);
        system.put("com.rocketmq.remoting.frameMaxLength", System.getProperty("com.rocketmq.remoting.frameMaxLength", "16777216"));
        system.put("tls.server.mode", TlsSystemConfig.tlsMode.getName());
        system.put("tls.server.need.client.auth", TlsSystemConfig.tlsServerNeedClientAuth);
        system.put("tls.client.authServer", String.valueOf(TlsSystemConfig.tlsClientAuthServer));
        found.put("System", system);
        System.out.println(found.toJSONString());
        System.exit(0);
    }

    private static JSONObject settings(Object configuration) throws Exception {
        JSONObject found = new JSONObject(true);
        for (Class<?> type = configuration.getClass(); type != Object.class; type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                field.setAccessible(true);
                Object value = Modifier.isStatic(field.getModifiers()) ? null : field.get(configuration);
                if (value instanceof Number || value instanceof Boolean || value instanceof String || value instanceof Enum) {
                    found.put(field.getName(), String.valueOf(value));
                }
            }
        }
        return found;
    }
}
