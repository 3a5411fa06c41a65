"""Hosting of released engines, unmodified, inside the nodes: import hook, watch over their threads, proof that nothing was changed.

What only one engine has lies in a package of its own below; a node imports it only when a scenario names that engine.
"""
