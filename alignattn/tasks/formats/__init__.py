"""Readers of files of rows, one per format; each returns `TextRows`."""
