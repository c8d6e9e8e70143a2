import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Moves records from topic to topic in transactions, with the offsets, until standard input ends.
 * Arguments: BOOTSTRAP INPUT GROUP OUTPUT TRANSACTIONAL_ID; see ../README.md. An exception ends it:
 * whoever started it starts it again.
 */
public final class Pipe {
    private static final int ABORT_PERCENT = 10;

    private Pipe() {}

    public static void main(String[] args) throws Exception {
        String source = args[1];
        String target = args[3];
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
        try (KafkaProducer<byte[], byte[]> producer = producer(args);
                KafkaConsumer<byte[], byte[]> consumer = consumer(args)) {
            producer.initTransactions();
            consumer.subscribe(List.of(source));
            while (!stop.get()) {
                move(producer, consumer, target);
            }
        }
    }

    private static void move(
            KafkaProducer<byte[], byte[]> producer,
            KafkaConsumer<byte[], byte[]> consumer,
            String target) {
        var records = consumer.poll(Duration.ofMillis(200));
        if (records.isEmpty()) {
            return;
        }
        Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
        producer.beginTransaction();
        for (ConsumerRecord<byte[], byte[]> record : records) {
            producer.send(new ProducerRecord<>(target, record.partition(), null, record.value()));
            TopicPartition place = new TopicPartition(record.topic(), record.partition());
            ends.put(place, new OffsetAndMetadata(record.offset() + 1));
        }
        producer.sendOffsetsToTransaction(ends, consumer.groupMetadata());
        if (ThreadLocalRandom.current().nextInt(100) >= ABORT_PERCENT) {
            producer.commitTransaction();
            System.out.println("committed\t" + records.count());
            return;
        }
        producer.abortTransaction();
        System.out.println("aborted\t" + records.count());
        var committed = consumer.committed(consumer.assignment());
        for (TopicPartition place : consumer.assignment()) {
            OffsetAndMetadata from = committed.get(place);
            consumer.seek(place, from == null ? 0 : from.offset());
        }
    }

    private static KafkaProducer<byte[], byte[]> producer(String[] args) {
        Properties properties = common(args[0]);
        properties.put("transactional.id", args[4]);
        var bytes = new ByteArraySerializer();
        return new KafkaProducer<>(properties, bytes, bytes);
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String[] args) {
        Properties properties = common(args[0]);
        properties.put("group.id", args[2]);
        properties.put("session.timeout.ms", "6000");
        properties.put("heartbeat.interval.ms", "200");
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        properties.put("isolation.level", "read_committed");
        String most = System.getenv().getOrDefault("FENCEPOST_PIPES_BATCH", "200");
        properties.put("max.poll.records", most);
        var bytes = new ByteArrayDeserializer();
        return new KafkaConsumer<>(properties, bytes, bytes);
    }

    private static Properties common(String bootstrap) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("reconnect.backoff.ms", "10");
        properties.put("reconnect.backoff.max.ms", "100");
        properties.put("retry.backoff.ms", "20");
        return properties;
    }
}
