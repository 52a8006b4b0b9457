package penstock.interop.admin;

import com.alibaba.fastjson.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import org.apache.commons.cli.CommandLine;
import org.apache.commons.cli.DefaultParser;
import org.apache.commons.cli.Options;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.srvutil.ServerUtil;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;
import org.apache.rocketmq.tools.command.SubCommandException;
import penstock.interop.driver.Driver;

/**
 * RocketMQ's own mqadmin commands in one JVM, several at a time: as processes of their own they cost seconds each.
 *
 * <p>What its main method does is done here: find the command, parse its words, execute it, print what it throws. Each
 * command's output is kept apart by its thread, which the threads that it starts inherit.
 */
public final class AdminTool {
    private static final InheritableThreadLocal<ByteArrayOutputStream> PRINTED = new InheritableThreadLocal<>();

    private AdminTool() {
    }

    public static void main(String[] arguments) throws Exception {
        System.setProperty(MixAll.NAMESRV_ADDR_PROPERTY, arguments[0]);
        MQAdminStartup.main0(new String[0], null); // Fills the list of commands.
        PrintStream out = new PrintStream(new ByThread(System.out), true, StandardCharsets.UTF_8);
        System.setOut(out);
        System.setErr(out);
        new Driver().on("mqadmin", AdminTool::run).serve(Path.of(arguments[1]));
    }

    /** {words, accessKey?, secretKey?}: what the command printed. With keys its requests are signed. */
    private static JSONObject run(JSONObject command) throws Exception {
        List<String> words = command.getJSONArray("words").toJavaList(String.class);
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PRINTED.set(printed);
        notInTheSameMillisecond();
        try {
            execute(find(words.get(0)), words, hook(command));
        } catch (SubCommandException failed) {
            failed.printStackTrace();
        }
        JSONObject answer = new JSONObject(true);
        answer.put("output", printed.toString(StandardCharsets.UTF_8));
        return answer;
    }

    private static void execute(SubCommand command, List<String> words, RPCHook hook) throws SubCommandException {
        Options options = ServerUtil.buildCommandlineOptions(new Options());
        String[] rest = words.subList(1, words.size()).toArray(new String[0]);
        CommandLine line = ServerUtil.parseCmdLine(
            "mqadmin " + command.commandName(), rest, command.buildCommandlineOptions(options), new DefaultParser());
        command.execute(line, options, hook);
    }

    private static RPCHook hook(JSONObject command) {
        if (!command.containsKey("accessKey")) {
            return null;
        }
        return new AclClientRPCHook(
            new SessionCredentials(command.getString("accessKey"), command.getString("secretKey")));
    }

    private static SubCommand find(String name) throws ReflectiveOperationException {
        Field commands = MQAdminStartup.class.getDeclaredField("SUB_COMMANDS");
        commands.setAccessible(true);
        for (Object known : (List<?>) commands.get(null)) {
            SubCommand command = (SubCommand) known;
            if (Arrays.asList(command.commandName(), command.commandAlias()).contains(name)) {
                return command.getClass().getDeclaredConstructor().newInstance(); // Some keep what they were told.
            }
        }
        throw new IllegalArgumentException("no command " + name);
    }

    /** Commands name their clients after the time; two of one name would be one client. */
    private static synchronized void notInTheSameMillisecond() throws InterruptedException {
        Thread.sleep(60);
    }

    /** A stream that writes to the buffer of the command whose thread writes. */
    private static final class ByThread extends OutputStream {
        private final OutputStream otherwise;

        ByThread(OutputStream otherwise) {
            this.otherwise = otherwise;
        }

        @Override
        public void write(int octet) throws java.io.IOException {
            ByteArrayOutputStream printed = PRINTED.get();
            (printed == null ? otherwise : printed).write(octet);
        }

        @Override
        public void write(byte[] octets, int from, int count) throws java.io.IOException {
            ByteArrayOutputStream printed = PRINTED.get();
            (printed == null ? otherwise : printed).write(octets, from, count);
        }
    }
}
