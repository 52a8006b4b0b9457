package penstock.bench;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * Drives a broker with the unmodified client and prints one JSON line: how much was done in how long, and how long
 * single calls took.
 *
 * <pre>ClientBench NAMESERVER TOPIC sync|async|batch THREADS BODY_SIZE SECONDS
 * ClientBench NAMESERVER TOPIC drain THREADS COUNT GROUP</pre>
 */
public final class ClientBench {
    private static final int BATCH = 64;
    private static final int WINDOW = 1024;
    /** Times kept, over all threads. */
    private static final int SAMPLES = 2_000_000;
    private static final double WARM_UP_SECONDS = 2.0;

    private ClientBench() {
    }

    public static void main(String[] arguments) throws Exception {
        // The client's threads are no daemons: without this a failure would leave a process that never ends.
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            System.exit(1);
        });
        String mode = arguments[2];
        int threads = Integer.parseInt(arguments[3]);
        if (mode.equals("drain")) {
            drain(arguments[0], arguments[1], threads, Long.parseLong(arguments[4]), arguments[5]);
            System.exit(0);
        }
        byte[] body = new byte[Integer.parseInt(arguments[4])];
        Arrays.fill(body, (byte) 'x');
        double seconds = Double.parseDouble(arguments[5]);
        DefaultMQProducer producer = new DefaultMQProducer("bench-producer");
        producer.setNamesrvAddr(arguments[0]);
        producer.setInstanceName("bench-" + System.nanoTime());
        producer.setRetryTimesWhenSendFailed(0);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        run(producer, arguments[1], mode, threads, body, WARM_UP_SECONDS);
        print(mode, run(producer, arguments[1], mode, threads, body, seconds));
        producer.shutdown();
        System.exit(0);
    }

    /** What all threads did. */
    private static final class Outcome {
        long messages;
        double seconds;
        long failures;
        long[] nanos = new long[0];
    }

    private static Outcome run(
        DefaultMQProducer producer, String topic, String mode, int threads, byte[] body, double seconds)
        throws InterruptedException {
        Sender[] senders = new Sender[threads];
        long ends = System.nanoTime() + (long) (seconds * 1e9);
        long started = System.nanoTime();
        for (int i = 0; i < threads; i++) {
            senders[i] = new Sender(producer, topic, mode, body, ends, SAMPLES / threads);
            senders[i].start();
        }
        Outcome all = new Outcome();
        for (Sender sender : senders) {
            sender.join();
            all.messages += sender.messages.get();
            all.failures += sender.failures.get();
            long[] joined = Arrays.copyOf(all.nanos, all.nanos.length + sender.count);
            System.arraycopy(sender.nanos, 0, joined, all.nanos.length, sender.count);
            all.nanos = joined;
        }
        all.seconds = (System.nanoTime() - started) / 1e9;
        return all;
    }

    private static final class Sender extends Thread {
        private final DefaultMQProducer producer;
        private final String topic;
        private final String mode;
        private final byte[] body;
        private final long ends;
        final AtomicLong messages = new AtomicLong();
        final AtomicLong failures = new AtomicLong();
        final long[] nanos;
        int count;

        Sender(DefaultMQProducer producer, String topic, String mode, byte[] body, long ends, int samples) {
            this.producer = producer;
            this.topic = topic;
            this.mode = mode;
            this.body = body;
            this.ends = ends;
            this.nanos = new long[samples];
        }

        @Override
        public void run() {
            try {
                switch (mode) {
                    case "sync": sync(); break;
                    case "async": async(); break;
                    case "batch": batch(); break;
                    default: throw new IllegalArgumentException(mode);
                }
            } catch (Exception error) {
                error.printStackTrace();
                failures.incrementAndGet();
            }
        }

        private Message message() {
            return new Message(topic, "TagA", body);
        }

        private void sync() throws Exception {
            for (long now = System.nanoTime(); now < ends; ) {
                SendResult result = producer.send(message());
                long after = System.nanoTime();
                count(result, 1, after - now);
                now = after;
            }
        }

        private void batch() throws Exception {
            for (long now = System.nanoTime(); now < ends; ) {
                List<Message> messages = new ArrayList<>(BATCH);
                for (int i = 0; i < BATCH; i++) {
                    messages.add(message());
                }
                SendResult result = producer.send(messages);
                long after = System.nanoTime();
                count(result, BATCH, after - now);
                now = after;
            }
        }

        private void count(SendResult result, int number, long took) {
            if (result.getSendStatus() == SendStatus.SEND_OK) {
                messages.addAndGet(number);
            } else {
                failures.addAndGet(number);
            }
            if (count < nanos.length) {
                nanos[count++] = took;
            }
        }

        private void async() throws Exception {
            Semaphore window = new Semaphore(WINDOW);
            while (System.nanoTime() < ends) {
                window.acquire();
                producer.send(message(), new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        messages.incrementAndGet();
                        window.release();
                    }

                    @Override
                    public void onException(Throwable error) {
                        failures.incrementAndGet();
                        window.release();
                    }
                });
            }
            window.acquire(WINDOW);
        }
    }

    private static void drain(String nameserver, String topic, int threads, long wanted, String group)
        throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameserver);
        consumer.setInstanceName("bench-" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(threads);
        consumer.setConsumeThreadMax(threads);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(topic, "*");
        AtomicLong seen = new AtomicLong();
        AtomicLong first = new AtomicLong();
        AtomicLong last = new AtomicLong();
        AtomicBoolean done = new AtomicBoolean();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            first.compareAndSet(0, System.nanoTime());
            if (seen.addAndGet(messages.size()) >= wanted && done.compareAndSet(false, true)) {
                last.set(System.nanoTime());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        long ends = System.nanoTime() + 120_000_000_000L;
        while (!done.get() && System.nanoTime() < ends) {
            Thread.sleep(1);
        }
        Outcome outcome = new Outcome();
        outcome.messages = seen.get();
        outcome.seconds = ((done.get() ? last.get() : System.nanoTime()) - first.get()) / 1e9;
        outcome.failures = done.get() ? 0 : 1;
        consumer.shutdown();
        print("drain", outcome);
    }

    private static void print(String mode, Outcome outcome) {
        Arrays.sort(outcome.nanos);
        System.out.printf(
            Locale.ROOT,
            "{\"mode\":\"%s\",\"messages\":%d,\"seconds\":%.4f,\"per_second\":%.1f,\"failures\":%d,"
                + "\"p50_us\":%.1f,\"p99_us\":%.1f,\"p999_us\":%.1f}%n",
            mode,
            outcome.messages,
            outcome.seconds,
            outcome.messages / outcome.seconds,
            outcome.failures,
            percentile(outcome.nanos, 0.5),
            percentile(outcome.nanos, 0.99),
            percentile(outcome.nanos, 0.999));
        System.out.flush();
    }

    private static double percentile(long[] sorted, double part) {
        return sorted.length == 0 ? 0 : sorted[(int) (sorted.length * part)] / 1e3;
    }
}
