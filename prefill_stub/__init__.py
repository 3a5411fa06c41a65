"""Prefill stub: makes metadata rows and KV pages from the room alone and writes them into decode. `python -m prefill_stub`."""
