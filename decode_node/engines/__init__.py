"""Decode engines."""
