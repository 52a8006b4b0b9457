package penstock.interop.client;

import com.alibaba.fastjson.JSONObject;
import java.nio.file.Path;
import java.util.List;
import penstock.interop.driver.Driver;

/** The unmodified RocketMQ client of one release, as a driver. The commands are described where they are done. */
public final class ClientTool {
    private ClientTool() {
    }

    public static void main(String[] arguments) throws Exception {
        Producers producers = new Producers();
        Transactions transactions = new Transactions();
        PushConsumers pushers = new PushConsumers();
        PullConsumers pullers = new PullConsumers();
        new Driver()
            .on("producer", producers::create)
            .on("send", producers::send)
            .on("request", producers::request)
            .on("recall", producers::recall)
            .on("view", producers::view)
            .on("query", producers::query)
            .on("create_topic", producers::createTopic)
            .on("flood", producers::flood)
            .on("transaction_producer", transactions::create)
            .on("transaction", transactions::send)
            .on("questions", transactions::questions)
            .on("push", pushers::create)
            .on("received", pushers::received)
            .on("assigned", pushers::assigned)
            .on("puller", pullers::createPuller)
            .on("pull", pullers::pull)
            .on("lite", pullers::createLite)
            .on("poll", pullers::poll)
            .on("seek", pullers::seek)
            .on("close", command -> {
                String name = command.getString("name");
                if (!producers.close(name)
                    && !transactions.close(name)
                    && !pushers.close(name)
                    && !pullers.close(name)) {
                    throw new IllegalArgumentException("nothing is named " + name);
                }
                return new JSONObject();
            })
            .on("close_all", command -> {
                List<Thread> closing = pushers.closing();
                closing.addAll(pullers.closing());
                closing.addAll(producers.closing());
                closing.addAll(transactions.closing());
                // Now and then a stop of the 5.3 client takes three seconds of waiting; nobody needs to wait with it.
                for (Thread thread : closing) {
                    thread.join(100);
                }
                return new JSONObject();
            })
            .serve(Path.of(arguments[0]));
    }
}
