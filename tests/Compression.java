import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Kafka's own client beside ours: copies COUNT records of one topic to another one, with a codec of its own. */
public class Compression {
    public static void main(String[] arguments) throws Exception {
        for (int i = 1; i < arguments.length; i += 4) {
            copy(arguments[0], arguments[i], arguments[i + 1], arguments[i + 2], Integer.parseInt(arguments[i + 3]));
        }
    }

    private static void copy(String bootstrap, String codec, String from, String to, int count) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("compression.type", codec);
        properties.put("linger.ms", "50");
        properties.put("acks", "all");
        long deadline = System.nanoTime() + 30_000_000_000L;
        try (KafkaConsumer<byte[], byte[]> consumer =
                     new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
             KafkaProducer<byte[], byte[]> producer =
                     new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer())) {
            TopicPartition partition = new TopicPartition(from, 0);
            consumer.assign(Collections.singletonList(partition));
            consumer.seekToBeginning(Collections.singletonList(partition));
            int copied = 0;
            while (copied < count && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    producer.send(new ProducerRecord<>(to, 0, record.key(), record.value(), record.headers()));
                    copied++;
                }
            }
            producer.flush();
            System.out.println(codec + " " + copied);
        }
    }
}
