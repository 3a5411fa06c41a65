"""Which release stopped, or began, to show an anomaly: a binary search over releases in the order of their versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from packaging.version import InvalidVersion, Version

from harness.errors import FieldError, HarnessError

Shows = Callable[[str], bool]
"""Does this release show the anomaly?"""


@dataclass
class Found:
    """The two neighbours between which it changes, and what was tried."""

    good: str
    bad: str
    fixed: bool
    """The bad one is the older: the good one is the first good release."""
    tried: dict[str, bool] = field(default_factory=dict)
    """Release to whether it showed the anomaly."""

    @property
    def sentence(self) -> str:
        """The answer in a line."""
        if self.fixed:
            return f"first good release: {self.good} (the last that shows it is {self.bad})"
        return f"first bad release: {self.bad} (the last that does not show it is {self.good})"


def between(known: Sequence[str], good: str, bad: str) -> list[str]:
    """Releases from the older of the two to the newer, both included, oldest first; raises FieldError where that is nothing."""
    ends = (_version("--good", good), _version("--bad", bad))
    if ends[0] == ends[1]:
        raise FieldError("--bad", bad, "another release than --good")
    versions = {**{_version("--releases", name): name for name in known}, ends[0]: good, ends[1]: bad}
    return [versions[version] for version in sorted(versions) if min(ends) <= version <= max(ends)]


def _version(field: str, text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion as error:
        raise FieldError(field, text, "a version such as 0.5.13 or 0.5.12.post1") from error


def bisect(releases: Sequence[str], good: str, bad: str, shows: Shows) -> Found:
    """Search `releases` (oldest first, with `good` and `bad` at its ends). Each is asked at most once.

    Raises HarnessError when the ends are not as was said: then there is nothing to search for.
    """
    found = Found(good, bad, fixed=Version(bad) < Version(good))

    def ask(release: str) -> bool:
        found.tried[release] = shows(release)
        return found.tried[release]

    if not ask(bad):
        raise HarnessError(f"{bad} does not show it: give another --bad, more --requests or more --repeats")
    if ask(good):
        raise HarnessError(f"{good} shows it as well: give another --good")
    order = list(releases) if found.fixed else list(reversed(releases))  # from bad to good
    low, high = 0, len(order) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if ask(order[middle]):
            low = middle
        else:
            high = middle
    found.bad, found.good = order[low], order[high]
    return found
