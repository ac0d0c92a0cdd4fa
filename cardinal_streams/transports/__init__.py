"""The transports, which carry messages: the streams of a node, a recorded file, and Kafka."""
