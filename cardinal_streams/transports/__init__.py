"""What carries messages: the streams of a node, a recorded file, Kafka."""
