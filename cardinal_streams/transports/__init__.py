"""The transports, which carry messages: over the streams of a node, a recorded file, or Kafka."""
