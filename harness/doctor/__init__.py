"""`handoff doctor`: what of this works on this machine, what is missing, and how to get it."""
