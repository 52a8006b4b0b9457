package penstock.interop.kafka;

import java.io.IOException;
import java.io.InputStream;
import kafka.Kafka;
import kafka.tools.StorageTool;
import org.apache.kafka.common.Uuid;

/**
 * One Kafka node in one JVM: formats the storage that its configuration names, then serves.
 *
 * <p>It ends when its standard input does: whoever started it and died, in whatever way, leaves none behind.
 *
 * <p>Usage: KafkaNode server.properties
 */
public final class KafkaNode {
    private KafkaNode() {
    }

    public static void main(String[] arguments) {
        Thread watch = new Thread(KafkaNode::endWithInput, "end-with-input");
        watch.setDaemon(true);
        watch.start();
        String[] format = {"format", "-t", Uuid.randomUuid().toString(), "-c", arguments[0]};
        int code = StorageTool.execute(format, System.out);
        if (code != 0) {
            System.exit(code);
        }
        Kafka.main(new String[] {arguments[0]});
    }

    private static void endWithInput() {
        try (InputStream input = System.in) {
            while (input.read() >= 0) {
                // Nothing is said on it; only its end matters.
            }
        } catch (IOException broken) {
            // As good as its end.
        }
        Runtime.getRuntime().halt(0);
    }
}
