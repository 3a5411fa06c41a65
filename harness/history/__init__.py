"""What happened, as recorded by every process: the only thing the checker reads."""
