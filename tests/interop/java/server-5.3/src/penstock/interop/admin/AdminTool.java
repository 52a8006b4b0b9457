package penstock.interop.admin;

import com.alibaba.fastjson.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import penstock.interop.driver.Driver;

/** RocketMQ's own mqadmin, command after command in one JVM: starting one for each costs seconds. */
public final class AdminTool {
    private AdminTool() {
    }

    public static void main(String[] arguments) throws Exception {
        new Driver().on("mqadmin", AdminTool::run).serve(Path.of(arguments[0]));
    }

    /** {arguments}: what the command printed. */
    private static synchronized JSONObject run(JSONObject command) {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream out = System.out;
        PrintStream err = System.err;
        try (PrintStream both = new PrintStream(printed, true, StandardCharsets.UTF_8)) {
            System.setOut(both);
            System.setErr(both);
            MQAdminStartup.main0(command.getJSONArray("arguments").toArray(new String[0]), null);
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        JSONObject answer = new JSONObject(true);
        answer.put("output", printed.toString(StandardCharsets.UTF_8));
        return answer;
    }
}
