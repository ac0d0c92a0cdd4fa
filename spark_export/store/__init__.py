"""Reads and writes the files of tables, in local folders, on object stores and on HDFS, through one interface."""
