package penstock.interop.client;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Transactional producers. How a transaction ends is in the message: its property "local" says what the local work came
 * to, "check" what a question is answered with; each is commit, rollback or unknown.
 */
final class Transactions {
    private final Named<Running> running = new Named<>(one -> one.producer.shutdown());

    private static final class Running implements TransactionListener {
        private final List<JSONObject> questions = new CopyOnWriteArrayList<>();
        private final TransactionMQProducer producer;
        private final String answer;

        Running(JSONObject command) {
            producer = new TransactionMQProducer(null, command.getString("group"), null, command.getBooleanValue("trace"), null);
            answer = command.getString("answer");
            producer.setTransactionListener(this);
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return state(message.getProperty("local"));
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            questions.add(MessageJson.received(message));
            return state(answer != null ? answer : message.getProperty("check"));
        }

        private static LocalTransactionState state(String name) {
            switch (name == null ? "unknown" : name) {
                case "commit":
                    return LocalTransactionState.COMMIT_MESSAGE;
                case "rollback":
                    return LocalTransactionState.ROLLBACK_MESSAGE;
                default:
                    return LocalTransactionState.UNKNOW;
            }
        }
    }

    /** {name, group, nameserver, answer?: what every question is answered with, trace?}. */
    JSONObject create(JSONObject command) throws Exception {
        Running created = new Running(command);
        Named.configure(created.producer, command);
        created.producer.start();
        running.put(command, created);
        return new JSONObject();
    }

    /** {name, topic, messages}: each in a transaction of its own. */
    JSONObject send(JSONObject command) throws Exception {
        TransactionMQProducer producer = running.get(command).producer;
        JSONArray results = new JSONArray();
        for (Message message : MessageJson.messages(command)) {
            TransactionSendResult result = producer.sendMessageInTransaction(message, null);
            JSONObject shown = MessageJson.sendResult(result);
            shown.put("transactionId", result.getTransactionId());
            shown.put("local", result.getLocalTransactionState().name());
            results.add(shown);
        }
        JSONObject answer = new JSONObject(true);
        answer.put("results", results);
        return answer;
    }

    /** {name}: the messages that this producer was asked about, in the order of the questions. */
    JSONObject questions(JSONObject command) {
        JSONObject answer = new JSONObject(true);
        answer.put("messages", running.get(command).questions);
        return answer;
    }

    boolean close(String name) {
        return running.close(name);
    }

    List<Thread> closing() {
        return running.closing();
    }
}
