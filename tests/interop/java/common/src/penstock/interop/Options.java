package penstock.interop;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** The command line: positional words, size options and switches, and the store configuration they make. */
final class Options {
    final List<String> words = new ArrayList<>();
    private final Map<String, Integer> sizes = new HashMap<>();
    boolean sync;
    boolean halt;
    boolean load;
    private boolean seal;
    private boolean checkSeals;

    static Options parse(String[] args) {
        Options options = new Options();
        for (int i = 0; i < args.length; i++) {
            switch (args[i]) {
                case "--sync":
                    options.sync = true;
                    break;
                case "--halt":
                    options.halt = true;
                    break;
                case "--load":
                    options.load = true;
                    break;
                case "--seal":
                    options.seal = true;
                    break;
                case "--check-seals":
                    options.checkSeals = true;
                    break;
                case "--segment-bytes":
                case "--queue-entries":
                case "--index-slots":
                case "--index-entries":
                    options.sizes.put(args[i], Integer.parseInt(args[++i]));
                    break;
                default:
                    if (args[i].startsWith("--")) {
                        throw new IllegalArgumentException("unknown option " + args[i]);
                    }
                    options.words.add(args[i]);
            }
        }
        return options;
    }

    /**
     * RocketMQ's defaults, except for the sizes asked for and for what would let the machine decide the outcome: the
     * hour of deletion, the fill of the disk, the HA port.
     */
    MessageStoreConfig storeConfig(String directory) {
        System.setProperty("rocketmq.broker.diskSpaceWarningLevelRatio", "0.995");
        System.setProperty("rocketmq.broker.diskSpaceCleanForciblyRatio", "0.99");
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(directory);
        config.setStorePathCommitLog(directory + "/commitlog");
        config.setDiskMaxUsedSpaceRatio(95);
        config.setDeleteWhen("25"); // An hour that never comes.
        config.setHaListenPort(0);
        config.setFlushDiskType(sync ? FlushDiskType.SYNC_FLUSH : FlushDiskType.ASYNC_FLUSH);
        if (seal) {
            Release.sealRecords(config);
        }
        if (checkSeals) {
            Release.checkSeals(config);
        }
        if (sizes.containsKey("--segment-bytes")) {
            config.setMappedFileSizeCommitLog(sizes.get("--segment-bytes"));
        }
        if (sizes.containsKey("--queue-entries")) {
            config.setMappedFileSizeConsumeQueue(sizes.get("--queue-entries") * 20);
        }
        if (sizes.containsKey("--index-slots")) {
            config.setMaxHashSlotNum(sizes.get("--index-slots"));
        }
        if (sizes.containsKey("--index-entries")) {
            config.setMaxIndexNum(sizes.get("--index-entries"));
        }
        return config;
    }
}
