"""Tools for tests: clocks, a recording host, and the conformance suites. Needs no test runner."""

from pylash.testing import conformance
from pylash.testing.clocks import SimClock
from pylash.testing.recording import RecordedEffect, RecordingHost

__all__ = ("RecordedEffect", "RecordingHost", "SimClock", "conformance")
