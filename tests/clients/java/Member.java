import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a consumer group that commits each batch and waits for the answer, until standard
 * input ends. Arguments: BOOTSTRAP TOPIC GROUP STRATEGY [INSTANCE]; lines as in ../README.md.
 * STRATEGY: range, roundrobin, sticky, cooperative-sticky, or consumer for the protocol by which
 * the group coordinator assigns. With INSTANCE it is a static member. An exception that asks for
 * more than reading on ends it.
 */
public final class Member {
    private static final Map<String, String> ASSIGNORS = Map.of(
            "range", "RangeAssignor",
            "roundrobin", "RoundRobinAssignor",
            "sticky", "StickyAssignor",
            "cooperative-sticky", "CooperativeStickyAssignor");

    private Member() {}

    public static void main(String[] args) throws Exception {
        String topic = args[1];
        AtomicBoolean stop = new AtomicBoolean();
        Thread input = new Thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (java.io.IOException error) {
                System.err.println(error);
            }
            stop.set(true);
        });
        input.setDaemon(true);
        input.start();
        var bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(properties(args), bytes, bytes)) {
            consumer.subscribe(List.of(topic), new Listener());
            while (!stop.get()) {
                read(consumer);
            }
        }
    }

    private static void read(KafkaConsumer<byte[], byte[]> consumer) throws Exception {
        var records = consumer.poll(Duration.ofMillis(50));
        if (records.isEmpty()) {
            return;
        }
        var lines = new ByteArrayOutputStream();
        Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
        for (ConsumerRecord<byte[], byte[]> record : records) {
            lines.write(text("record\t" + record.partition() + "\t" + record.offset() + "\t"));
            lines.write(record.value());
            lines.write('\n');
            TopicPartition place = new TopicPartition(record.topic(), record.partition());
            ends.put(place, new OffsetAndMetadata(record.offset() + 1));
        }
        for (var end : ends.entrySet()) {
            lines.write(text("commit\t" + where(end) + "\n"));
        }
        say(lines.toByteArray());
        try {
            consumer.commitSync(ends);
        } catch (CommitFailedException | RebalanceInProgressException | TimeoutException error) {
            // Who reads on from the last commit reads these again.
            System.err.println(error);
            return;
        }
        var committed = new ByteArrayOutputStream();
        long now = System.currentTimeMillis();
        for (var end : ends.entrySet()) {
            committed.write(text("committed\t" + now + "\t" + where(end) + "\n"));
        }
        say(committed.toByteArray());
    }

    private static String where(Map.Entry<TopicPartition, OffsetAndMetadata> end) {
        return end.getKey().partition() + "\t" + end.getValue().offset();
    }

    private static byte[] text(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** Whole lines at once, so that a kill leaves no half of one behind the next. */
    private static void say(byte[] lines) {
        System.out.write(lines, 0, lines.length);
        System.out.flush();
    }

    private static final class Listener implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> revoked) {}

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
            String numbers = assigned.stream()
                    .map(place -> String.valueOf(place.partition()))
                    .collect(Collectors.joining(","));
            say(text("assigned\t" + System.currentTimeMillis() + "\t" + numbers + "\n"));
        }
    }

    private static Properties properties(String[] args) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", args[0]);
        properties.put("group.id", args[2]);
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        properties.put("max.poll.records", "200");
        properties.put("reconnect.backoff.ms", "10");
        properties.put("reconnect.backoff.max.ms", "100");
        properties.put("retry.backoff.ms", "20");
        if (args[3].equals("consumer")) {
            properties.put("group.protocol", "consumer");
        } else {
            properties.put("session.timeout.ms", "6000");
            properties.put("heartbeat.interval.ms", "200");
            String assignor = "org.apache.kafka.clients.consumer." + ASSIGNORS.get(args[3]);
            properties.put("partition.assignment.strategy", assignor);
        }
        if (args.length > 4) {
            properties.put("group.instance.id", args[4]);
        }
        return properties;
    }
}
