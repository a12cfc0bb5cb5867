"""The backend port and one adapter per runtime. Backends never learn what Kafka is."""
