"""`turnout doctor`: does an engine offer what a router needs, and what has to be added to its command line?"""

from __future__ import annotations

from turnout.doctor.examine import Options, examine
from turnout.doctor.report import Finding, Report

__all__ = ["Finding", "Options", "Report", "examine"]
