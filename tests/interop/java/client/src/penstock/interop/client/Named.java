package penstock.interop.client;

import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.producer.DefaultMQProducer;

/** Running clients by the name that the test gave them, and how to stop one. */
final class Named<T> {
    private final Map<String, T> running = new ConcurrentHashMap<>();
    private final Consumer<T> stop;

    Named(Consumer<T> stop) {
        this.stop = stop;
    }

    /**
     * What all clients have in common; {vip?}: whether requests but pulls go to the broker's VIP port. Routes are asked for and heartbeats are sent often, so that a topic or a client of
     * this second is known in the next.
     */
    static void configure(ClientConfig config, JSONObject command) {
        config.setNamesrvAddr(command.getString("nameserver"));
        config.setInstanceName(command.getString("name") + "-" + config.getClass().getSimpleName());
        config.setVipChannelEnabled(command.getBooleanValue("vip"));
        config.setPollNameServerInterval(500);
        config.setHeartbeatBrokerInterval(1000);
        if (config instanceof DefaultMQProducer) {
            // A send that a busy machine answers late is not made twice.
            ((DefaultMQProducer) config).setSendMsgTimeout(command.containsKey("timeout") ? command.getIntValue("timeout") : 30_000);
        }
    }

    void put(JSONObject command, T client) {
        running.put(command.getString("name"), client);
    }

    T get(JSONObject command) {
        T found = running.get(command.getString("name"));
        if (found == null) {
            throw new IllegalArgumentException("nothing is named " + command.getString("name"));
        }
        return found;
    }

    boolean close(String name) {
        T found = running.remove(name);
        if (found != null) {
            stop.accept(found);
        }
        return found != null;
    }

    /** Threads that stop one client each: most of a stop is waiting. */
    List<Thread> closing() {
        List<Thread> threads = new ArrayList<>();
        for (String name : running.keySet()) {
            Thread thread = new Thread(() -> close(name), "close-" + name);
            thread.start();
            threads.add(thread);
        }
        return threads;
    }
}
