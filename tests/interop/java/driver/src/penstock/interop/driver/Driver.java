package penstock.interop.driver;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * A process that does what a test tells it: one command per connection, on loopback.
 *
 * <p>A command is one line of JSON with the member "do"; the answer is one line. An exception of a command is an answer
 * too, with the members "error" (class), "message" and, where the exception has one, "code". The port is written to the
 * file named by the first argument once the driver listens. The process ends when its parent does.
 */
public final class Driver {
    /** What one command does. */
    public interface Action {
        JSONObject run(JSONObject command) throws Exception;
    }

    private final Map<String, Action> actions = new LinkedHashMap<>();

    public Driver on(String name, Action action) {
        actions.put(name, action);
        return this;
    }

    public void serve(Path portFile) throws IOException {
        endWithParent();
        try (ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
            Path fresh = portFile.resolveSibling(portFile.getFileName() + ".new");
            Files.writeString(fresh, Integer.toString(listener.getLocalPort()));
            Files.move(fresh, portFile, StandardCopyOption.ATOMIC_MOVE);
            while (true) {
                Socket caller = listener.accept();
                // A thread per command: one that waits for messages must not hold up the next.
                Thread thread = new Thread(() -> answer(caller), "driver");
                thread.setDaemon(true);
                thread.start();
            }
        }
    }

    private void answer(Socket caller) {
        try (Socket socket = caller) {
            String line = new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8)).readLine();
            if (line != null) {
                byte[] text = (run(JSON.parseObject(line)).toJSONString() + "\n").getBytes(StandardCharsets.UTF_8);
                socket.getOutputStream().write(text);
            }
        } catch (IOException gone) {
            System.err.println("the caller left: " + gone);
        }
    }

    private JSONObject run(JSONObject command) {
        try {
            Action action = actions.get(command.getString("do"));
            if (action == null) {
                throw new IllegalArgumentException("no command " + command.getString("do") + ", there are " + actions.keySet());
            }
            return action.run(command);
        } catch (Throwable thrown) {
            thrown.printStackTrace();
            return failure(thrown);
        }
    }

    public static JSONObject failure(Throwable thrown) {
        JSONObject answer = new JSONObject(true);
        answer.put("error", thrown.getClass().getSimpleName());
        answer.put("message", String.valueOf(thrown.getMessage()));
        try {
            answer.put("code", thrown.getClass().getMethod("getResponseCode").invoke(thrown));
        } catch (ReflectiveOperationException hasNone) {
            // Only exceptions that carry a broker's answer have a code.
        }
        return answer;
    }

    private static void endWithParent() {
        ProcessHandle parent = ProcessHandle.current().parent().orElseThrow();
        parent.onExit().thenRun(() -> Runtime.getRuntime().halt(1));
    }
}
