"""Stress harness for the prefill/decode hand-off of disaggregated LLM serving."""

__version__ = "0.1.0"
