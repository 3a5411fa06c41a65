"""How blocks get from prefill's memory into decode's: one-sided writes, each transport with its own meaning of "done"."""
