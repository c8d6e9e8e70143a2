import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * Counts the values of a topic with Kafka Streams, exactly once: through a repartition topic into a
 * store with a changelog, and every count to another topic, keyed by the value. Arguments:
 * BOOTSTRAP APPLICATION_ID STATE_DIRECTORY INPUT OUTPUT. It runs until standard input ends.
 */
public final class WordCounts {
    private WordCounts() {}

    public static void main(String[] args) throws Exception {
        KafkaStreams streams = new KafkaStreams(topology(args[3], args[4]), settings(args));
        streams.setUncaughtExceptionHandler(
                error -> StreamThreadExceptionResponse.REPLACE_THREAD);
        streams.start();
        System.in.readAllBytes();
        streams.close();
    }

    private static Properties settings(String[] args) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[2]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        // Every count is a record, not only the last one before a commit.
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 10_000);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        return settings;
    }

    private static Topology topology(String input, String output) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(input, Consumed.with(Serdes.String(), Serdes.String()))
                .groupBy((key, value) -> value, Grouped.with("words", Serdes.String(), Serdes.String()))
                .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts"))
                .toStream()
                .mapValues(count -> Long.toString(count))
                .to(output, Produced.with(Serdes.String(), Serdes.String()));
        return builder.build();
    }
}
