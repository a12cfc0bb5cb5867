// Asks a model with Spring Kafka's ReplyingKafkaTemplate, unchanged: Headrace understands its headers.
// java -cp 'examples/java/target/dependency/*' examples/java/SpringClient.java
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.listener.ContainerProperties;
import org.springframework.kafka.listener.KafkaMessageListenerContainer;
import org.springframework.kafka.requestreply.ReplyingKafkaTemplate;

public class SpringClient {
    public static void main(String[] arguments) throws Exception {
        String servers = System.getenv().getOrDefault("HEADRACE_BOOTSTRAP_SERVERS", "127.0.0.1:9092");
        Map<String, Object> kafka = Map.of("bootstrap.servers", servers);
        // A topic of its own for replies: its name must match --allow-reply-topics, as headrace.* does.
        String replies = "headrace.spring-replies";
        try (var admin = Admin.create(kafka)) {
            if (!admin.listTopics().names().get().contains(replies)) {
                admin.createTopics(List.of(new NewTopic(replies, 1, (short) 1))).all().get();
            }
        }
        var producers = new DefaultKafkaProducerFactory<>(kafka, new StringSerializer(), new StringSerializer());
        // The embedded broker lets a member join after half of its session timeout.
        Map<String, Object> member = Map.of("bootstrap.servers", servers, "session.timeout.ms", 6000);
        var consumers = new DefaultKafkaConsumerFactory<>(member, new StringDeserializer(), new StringDeserializer());
        var properties = new ContainerProperties(replies);
        properties.setGroupId("spring-" + UUID.randomUUID());
        var container = new KafkaMessageListenerContainer<>(consumers, properties);
        var template = new ReplyingKafkaTemplate<>(producers, container);
        template.setDefaultReplyTimeout(Duration.ofSeconds(30));
        // An answer that is an error ends the future with it.
        template.setReplyErrorChecker(reply -> {
            String status = new String(reply.headers().lastHeader("status").value());
            return status.equals("OK") ? null : new IllegalStateException(status + " " + reply.value());
        });
        template.start();
        template.waitForAssignment(Duration.ofSeconds(30));
        for (String input : List.of("x", "z")) {
            String body = "{\"inputs\": [{\"name\": \"" + input
                + "\", \"datatype\": \"FP32\", \"shape\": [1, 3], \"data\": [1, 2, 3]}]}";
            var request = new ProducerRecord<String, String>("headrace.echo.requests", body);
            request.headers().add("content-type", "application/json".getBytes());
            try {
                System.out.println(template.sendAndReceive(request).get().value());
            } catch (ExecutionException failed) {
                System.out.println(failed.getCause().getMessage());
            }
        }
        template.stop();
        template.destroy();
        producers.destroy();
    }
}
