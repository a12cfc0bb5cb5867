import io.apicurio.registry.serde.avro.AvroKafkaSerializer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Properties;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.DecoderFactory;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A producer as many have one: it knows Kafka, a Schema Registry and its own records, and nothing of Headrace.
 *
 * <p>java -cp 'LIBS/*' Produce.java BOOTSTRAP REGISTRY TOPIC SCHEMA.avsc RECORDS.jsonl
 */
public class Produce {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("enable.idempotence", "false"); // the embedded broker has none
        properties.put("acks", "all");
        properties.put("key.serializer", StringSerializer.class.getName());
        properties.put("value.serializer", AvroKafkaSerializer.class.getName());
        // What Confluent's serializer writes: a zero byte, the schema's id in four bytes, the record.
        properties.put("apicurio.registry.url", arguments[1]);
        properties.put("apicurio.registry.auto-register", "true");
        properties.put("apicurio.registry.as-confluent", "true");
        properties.put("apicurio.registry.use-id", "contentId");
        properties.put("apicurio.registry.headers.enabled", "false");

        Schema schema = new Schema.Parser().parse(Files.readString(Path.of(arguments[3])));
        GenericDatumReader<GenericRecord> reader = new GenericDatumReader<>(schema);
        List<String> lines = Files.readAllLines(Path.of(arguments[4]));
        try (Producer<String, GenericRecord> producer = new KafkaProducer<>(properties)) {
            for (String line : lines) {
                GenericRecord record = reader.read(null, DecoderFactory.get().jsonDecoder(schema, line));
                producer.send(new ProducerRecord<>(arguments[2], record.get("id").toString(), record), (sent, failure) -> {
                    if (failure != null) {
                        failure.printStackTrace();
                        System.exit(1);
                    }
                });
            }
        }
        System.out.println("sent " + lines.size() + " records of schema " + schema.getName());
    }
}
