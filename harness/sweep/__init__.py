"""Tuning by hand: many short runs over a grid of scenarios, or a search, and what they say together."""
