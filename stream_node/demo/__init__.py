"""The command `stream-node demo`: pushes real text, kills processes, and proves that no confirmed message is lost."""
