import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Transactions as fast as they go, or at a rate, for the benchmark. Argument: BOOTSTRAP. Standard
 * input has one case a line; see ../README.md. Any exception ends the process.
 */
public final class Transactions {
    private static final long WATCH_PATIENCE_NANOS = 30_000_000_000L;
    /** Moments of commits that are remembered for each producer. */
    private static final int RING = 1 << 14;

    private final String bootstrap;
    private final Map<String, String> settings;
    private final CountDownLatch watching;
    private final CountDownLatch ready;
    private final CountDownLatch go = new CountDownLatch(1);
    private final AtomicLongArray commits;
    private volatile long begin;
    /** Records that the watcher has to see in the end; negative while that is not known. */
    private volatile long expected = -1;

    private Transactions(String bootstrap, String line) {
        this.bootstrap = bootstrap;
        settings = new HashMap<>();
        for (String word : line.trim().split(" +")) {
            int equals = word.indexOf('=');
            settings.put(word.substring(0, equals), word.substring(equals + 1));
        }
        int watchers = number("watch");
        watching = new CountDownLatch(watchers);
        ready = new CountDownLatch(number("producers"));
        commits = new AtomicLongArray(watchers == 0 ? 0 : number("producers") * RING);
    }

    public static void main(String[] args) throws Exception {
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        });
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            new Transactions(args[0], line).run(lines);
        }
    }

    private int number(String key) {
        return Integer.parseInt(settings.get(key));
    }

    private void run(BufferedReader lines) throws Exception {
        Watcher watcher = number("watch") == 0 ? null : new Watcher();
        List<Worker> workers = new ArrayList<>();
        for (int index = 0; index < number("producers"); index++) {
            workers.add(new Worker(index));
        }
        if (watcher != null) {
            watcher.start();
        }
        watching.await();
        for (Worker worker : workers) {
            worker.start();
        }
        ready.await();
        System.out.println("ready");
        lines.readLine();
        begin = System.nanoTime();
        go.countDown();
        long all = 0;
        long counted = 0;
        Micros latency = new Micros();
        for (Worker worker : workers) {
            worker.join();
            all += worker.all;
            counted += worker.counted;
            latency.addAll(worker.latency);
        }
        Micros visible = new Micros();
        if (watcher != null) {
            expected = (all + workers.size()) * number("records");
            watcher.join();
            visible = watcher.visible;
        }
        System.out.printf(
                "done all=%d counted=%d p50_us=%d p99_us=%d visible_p50_us=%d visible_p99_us=%d%n",
                all, counted, latency.at(0.5), latency.at(0.99), visible.at(0.5), visible.at(0.99));
    }

    private Properties properties() {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        return properties;
    }

    private long measureFrom() {
        return begin + number("warmup_ms") * 1_000_000L;
    }

    private long end() {
        return measureFrom() + number("ms") * 1_000_000L;
    }

    /** One producer and its transactions. */
    private final class Worker extends Thread {
        private final int index;
        private final KafkaProducer<byte[], byte[]> producer;
        private final byte[] value;
        private final Micros latency = new Micros();
        private final boolean transactional = number("transactional") == 1;
        private volatile Exception failure;
        private long all;
        private long counted;

        Worker(int index) {
            this.index = index;
            Properties properties = properties();
            if (transactional) {
                properties.put("transactional.id", settings.get("name") + "-" + index);
            }
            var bytes = new ByteArraySerializer();
            producer = new KafkaProducer<>(properties, bytes, bytes);
            value = new byte[number("bytes")];
            new Random(index).nextBytes(value);
            setDaemon(true);
        }

        @Override
        public void run() {
            try (producer) {
                if (transactional) {
                    producer.initTransactions();
                }
                transaction(0);
                ready.countDown();
                go.await();
                load();
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }

        private void load() {
            long producers = number("producers");
            long rate = number("rate");
            long interval = rate == 0 ? 0 : producers * 1_000_000_000L / rate;
            for (int number = 1;; number++) {
                long due = System.nanoTime();
                if (interval > 0) {
                    due = begin + interval * index / producers + interval * (number - 1);
                }
                if (due >= end()) {
                    return;
                }
                for (long now = System.nanoTime(); now < due; now = System.nanoTime()) {
                    LockSupport.parkNanos(due - now);
                }
                transaction(number);
                long now = System.nanoTime();
                all++;
                if (now >= measureFrom() && now < end()) {
                    counted++;
                }
                if (due >= measureFrom()) {
                    latency.add(now - due);
                }
            }
        }

        private void transaction(int number) {
            if (transactional) {
                producer.beginTransaction();
            }
            ByteBuffer.wrap(value).putInt(index).putInt(number);
            String topic = settings.get("topic");
            int touched = number("touched");
            for (int record = 0; record < number("records"); record++) {
                int partition = (index + number + record % touched) % number("partitions");
                // The value is copied before this returns.
                producer.send(new ProducerRecord<>(topic, partition, null, value), (at, error) -> {
                    if (error != null) {
                        failure = error;
                    }
                });
            }
            if (!transactional) {
                producer.flush();
            } else {
                commit(number);
            }
            if (failure != null) {
                throw new IllegalStateException(failure);
            }
        }

        /** The group of a client without membership has no other constructor. */
        @SuppressWarnings("removal")
        private void commit(int number) {
            if (number("offsets") == 1) {
                var place = new TopicPartition(settings.get("input"), index);
                var group = new ConsumerGroupMetadata(settings.get("name") + "-" + index);
                producer.sendOffsetsToTransaction(
                        Map.of(place, new OffsetAndMetadata(number + 1)), group);
            }
            if (commits.length() > 0) {
                commits.set(index * RING + number % RING, System.nanoTime());
            }
            producer.commitTransaction();
        }
    }

    /** A consumer of committed records, which knows when each was committed. */
    private final class Watcher extends Thread {
        private final Micros visible = new Micros();

        Watcher() {
            setDaemon(true);
        }

        @Override
        public void run() {
            Properties properties = properties();
            properties.put("isolation.level", "read_committed");
            properties.put("enable.auto.commit", "false");
            var bytes = new ByteArrayDeserializer();
            try (var consumer = new KafkaConsumer<byte[], byte[]>(properties, bytes, bytes)) {
                List<TopicPartition> places = new ArrayList<>();
                for (int partition = 0; partition < number("partitions"); partition++) {
                    places.add(new TopicPartition(settings.get("topic"), partition));
                }
                consumer.assign(places);
                consumer.seekToEnd(places);
                places.forEach(consumer::position);
                watching.countDown();
                watch(consumer);
            }
        }

        private void watch(KafkaConsumer<byte[], byte[]> consumer) {
            long seen = 0;
            long last = System.nanoTime();
            while (expected < 0 || seen < expected) {
                var records = consumer.poll(Duration.ofMillis(100));
                long now = System.nanoTime();
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    ByteBuffer value = ByteBuffer.wrap(record.value());
                    long commit = commits.get(value.getInt() * RING + value.getInt() % RING);
                    if (begin != 0 && commit >= measureFrom() && commit < end()) {
                        visible.add(now - commit);
                    }
                }
                seen += records.count();
                if (!records.isEmpty()) {
                    last = now;
                }
                if (expected >= 0 && now - last > WATCH_PATIENCE_NANOS) {
                    break;
                }
            }
            if (seen != expected) {
                throw new IllegalStateException("saw " + seen + " of " + expected + " records");
            }
        }
    }

    /** Times in microseconds. */
    private static final class Micros {
        private long[] values = new long[1 << 10];
        private int length;

        void add(long nanos) {
            if (length == values.length) {
                values = Arrays.copyOf(values, 2 * length);
            }
            values[length++] = nanos / 1_000;
        }

        void addAll(Micros other) {
            for (int at = 0; at < other.length; at++) {
                add(other.values[at] * 1_000);
            }
        }

        long at(double quantile) {
            if (length == 0) {
                return 0;
            }
            Arrays.sort(values, 0, length);
            return values[(int) Math.min(length - 1, (long) (quantile * length))];
        }
    }
}
