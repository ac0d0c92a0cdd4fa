"""The live view of a node in a terminal, `stream-node top`: asked (`reading`), computed (`rates`), drawn (`screen`)."""
