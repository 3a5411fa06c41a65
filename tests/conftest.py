"""Makes the helper modules beside the tests importable by their folder's name, and pytest's own fixture for testing plugins available."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

pytest_plugins = ["pytester"]

settings.register_profile("handoff", deadline=None)  # a busy machine is no failure
settings.load_profile("handoff")
