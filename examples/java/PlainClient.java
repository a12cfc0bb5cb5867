// Asks a model by a record with Kafka's own client: java -cp 'examples/java/target/dependency/*' examples/java/PlainClient.java
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class PlainClient {
    public static void main(String[] arguments) {
        Map<String, Object> kafka =
            Map.of("bootstrap.servers", System.getenv().getOrDefault("HEADRACE_BOOTSTRAP_SERVERS", "127.0.0.1:9092"));
        String body =
            "{\"inputs\": [{\"name\": \"x\", \"datatype\": \"FP32\", \"shape\": [1, 3], \"data\": [1, 2, 3]}]}";
        try (var producer = new KafkaProducer<>(kafka, new StringSerializer(), new StringSerializer());
             var consumer = new KafkaConsumer<>(kafka, new StringDeserializer(), new StringDeserializer())) {
            // No group: this one reads the results from now on.
            List<TopicPartition> partitions = consumer.partitionsFor("headrace.echo.results").stream()
                .map(found -> new TopicPartition(found.topic(), found.partition())).toList();
            consumer.assign(partitions);
            consumer.seekToEnd(partitions);
            partitions.forEach(consumer::position);

            String id = UUID.randomUUID().toString();
            var request = new ProducerRecord<String, String>("headrace.echo.requests", body);
            request.headers().add("content-type", "application/json".getBytes());
            request.headers().add("id", id.getBytes());
            producer.send(request);
            producer.flush();

            while (true) {
                for (var result : consumer.poll(Duration.ofSeconds(1))) {
                    var named = result.headers().lastHeader("id");
                    if (named != null && id.equals(new String(named.value()))) {
                        System.out.println(new String(result.headers().lastHeader("status").value()));
                        System.out.println(result.value());
                        return;
                    }
                }
            }
        }
    }
}
