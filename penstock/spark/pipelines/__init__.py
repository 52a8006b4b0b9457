"""Jobs on Spark: each reads messages or files, and writes messages, files or a report."""
