"""The metrics of a node for Prometheus: a list of all of them, their values at one moment, and their text."""
