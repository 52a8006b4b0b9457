package penstock.interop.filter;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.filter.expression.BooleanExpression;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.parser.SelectorParser;

/**
 * Asks RocketMQ's own classes what an SQL92 expression says of messages.
 *
 * Standard input has lines of fields that are percent-encoded and separated by tabs: "P" and name=value pairs for the
 * properties of one message, "E" and an expression. For each expression one line goes to standard output: a "!" where it
 * does not parse, else a letter for each message so far: T, F, N (null), E (the evaluation failed). "T" and a list of tags is
 * answered with "!", or with what a subscription to them says: its text, its tags and their codes, separated by tabs.
 */
public final class FilterTool {
    private FilterTool() {
    }

    public static void main(String[] arguments) throws IOException {
        List<Message> messages = new ArrayList<>();
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        try (BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            String line;
            while ((line = in.readLine()) != null) {
                String[] fields = line.split("\t", -1);
                if (fields[0].equals("P")) {
                    messages.add(new Message(fields));
                } else if (fields[0].equals("T")) {
                    out.println(tags(decode(fields[1])));
                } else {
                    out.println(answers(decode(fields[1]), messages));
                }
            }
        }
    }

    private static String answers(String sql, List<Message> messages) {
        BooleanExpression expression;
        try {
            expression = SelectorParser.parse(sql);
        } catch (Throwable refused) {
            return "!";
        }
        StringBuilder letters = new StringBuilder();
        for (Message message : messages) {
            letters.append(letter(expression, message));
        }
        return letters.toString();
    }

    private static char letter(BooleanExpression expression, Message message) {
        Object value;
        try {
            value = expression.evaluate(message);
        } catch (Throwable failed) {
            return 'E';
        }
        if (value == null) {
            return 'N';
        }
        return value.equals(Boolean.TRUE) ? 'T' : 'F';
    }

    /** By reflection, because the class is in another package in each release. */
    private static String tags(String expression) {
        try {
            Object data = filterApi().getMethod("buildSubscriptionData", String.class, String.class)
                .invoke(null, "T", expression);
            StringBuilder line = new StringBuilder(encode((String) data.getClass().getMethod("getSubString").invoke(data)));
            for (String getter : new String[] {"getTagsSet", "getCodeSet"}) {
                line.append('\t');
                for (Object item : new TreeSet<>((Set<?>) data.getClass().getMethod(getter).invoke(data))) {
                    line.append(encode(item.toString())).append(' ');
                }
            }
            return line.toString();
        } catch (ReflectiveOperationException refused) {
            return "!";
        }
    }

    private static Class<?> filterApi() throws ClassNotFoundException {
        try {
            return Class.forName("org.apache.rocketmq.remoting.protocol.filter.FilterAPI");
        } catch (ClassNotFoundException older) {
            return Class.forName("org.apache.rocketmq.common.filter.FilterAPI");
        }
    }

    private static String encode(String field) {
        return URLEncoder.encode(field, StandardCharsets.UTF_8);
    }

    private static String decode(String field) {
        return URLDecoder.decode(field, StandardCharsets.UTF_8);
    }

    /** Properties of one message. */
    private static final class Message implements EvaluationContext {
        private final Map<String, Object> properties = new HashMap<>();

        Message(String[] fields) {
            for (int i = 1; i < fields.length; i++) {
                String[] pair = fields[i].split("=", 2);
                properties.put(decode(pair[0]), decode(pair[1]));
            }
        }

        @Override
        public Object get(String name) {
            return properties.get(name);
        }

        @Override
        public Map<String, Object> keyValues() {
            return properties;
        }
    }
}
