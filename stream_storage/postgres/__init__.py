"""The log and the tables of a node in a PostgreSQL database, on a primary server with or without standbys."""
