"""Prefill sides of released engines, hosted."""
