"""Decode node: owns the metadata buffers and KV pages, admits hand-offs, commits or aborts them. `python -m decode_node`."""
