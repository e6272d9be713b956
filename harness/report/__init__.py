"""What a play found, for people: one self-contained HTML page, and a table for the terminal."""

from harness.report.console import print_result
from harness.report.material import Material, Roc, Series, SeriesExample
from harness.report.page import write_report

__all__ = ["Material", "Roc", "Series", "SeriesExample", "print_result", "write_report"]
