"""HTTP: one listener in the node's own event loop, for health, metrics, data and the dashboard."""
