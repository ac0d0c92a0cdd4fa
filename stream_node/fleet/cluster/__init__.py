"""A cluster: several nodes, its members, that serve the streams of one database together."""
