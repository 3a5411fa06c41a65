"""One error tree; each error carries the exit code of the command that it ends.

HandoffError
├── UsageError          2  the caller gave something that is not allowed
│   └── FieldError         ... and the message names field, value and what is allowed
├── HistoryError        4  a recorded run cannot be read
└── HarnessError        4  the harness itself failed (a node did not start, a port was taken)
    └── UnavailableError 2  what the caller asked for cannot be had on this machine (no network, a full disk, a broken package)
"""

from __future__ import annotations

EXIT_VALID = 0
EXIT_INVALID = 1
EXIT_USAGE = 2
EXIT_UNKNOWN = 3
EXIT_HARNESS = 4


class HandoffError(Exception):
    """Base of every error this project raises on purpose; prints as one line."""

    exit_code = EXIT_HARNESS


class UsageError(HandoffError):
    """The caller asked for something that is not allowed."""

    exit_code = EXIT_USAGE


class FieldError(UsageError):
    """A field of a scenario, option or environment has a value that is not allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        """Name the `field`, the `value` that was given and what is `allowed`."""
        super().__init__(f"{field}: {value!r} is not allowed; use {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed


class HistoryError(HandoffError):
    """A recorded run cannot be read: missing, of another schema, or damaged."""


class HarnessError(HandoffError):
    """The harness itself failed; says nothing about the engine under test."""


class UnavailableError(HarnessError):
    """A release or library that was asked for cannot be fetched or loaded here; nothing was left behind."""

    exit_code = EXIT_USAGE
