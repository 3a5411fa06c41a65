"""The I/O shell that every process of the harness shares: inbox, peers, heartbeats, parent watch, history streams."""
