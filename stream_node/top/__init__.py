"""The live view of a node in a terminal, `stream-node top`: asked and computed (`reading`), then drawn (`screen`)."""
