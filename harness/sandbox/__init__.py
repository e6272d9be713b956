"""Where a submission's code runs. One protocol; `local` is for one's own code."""

from harness.sandbox.local import LocalSandbox
from harness.sandbox.protocol import (
    Answer,
    Job,
    Limits,
    Outcome,
    Sandbox,
)

__all__ = ["Answer", "Job", "Limits", "LocalSandbox", "Outcome", "Sandbox"]
