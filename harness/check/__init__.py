"""Judges a recorded run from its history alone: no request got foreign data, was aborted without cause, hung or leaked."""

from harness.check.checker import check_history
from harness.check.report import Anomaly, Coverage, Expectations, Report
from harness.check.rules import ANOMALIES, RULES

__all__ = ["ANOMALIES", "RULES", "Anomaly", "Coverage", "Expectations", "Report", "check_history"]
