"""Faults: what is done to a hand-off on purpose, one line each, drawn from the seed, recorded in the history, healed before the drain."""
