"""The demo ICU cohort: made-up patients that look like a real intensive care file.

Every number comes from `facts.json` (aggregates of PhysioNet 2012 and 2019, the public Amsterdam
dictionary, and guesses marked as guesses); no patient's data is in it. A cohort is built in three
steps, each a pure function of the facts, the earlier steps and the generator it is given: when
patients were charted (`charting`), what was measured in each row (`panels`), and the levels
(`levels`).
"""

from harness.simulate.table import simulate_table, write_csv

__all__ = ["simulate_table", "write_csv"]
