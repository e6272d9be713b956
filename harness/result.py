"""The shape of ``result.json``: what a play found, for people's programs to read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.failures import Cause

SCHEMA_VERSION = 1
Interval = tuple[float, float]
Status = Literal["done", "failed", "pending"]
Share = Annotated[float, Field(ge=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Membership(_Strict):
    """Membership scores of one match; see `harness.scoring.membership` for the definitions.

    `advantage` is the in-sample maximum over thresholds, `advantage_at_n` that at N named.
    `ci` maps a score's name (``tpr_at_fpr.0.01`` for an entry of a table) to [low, high].
    """

    accuracy: Share
    auc: Share
    advantage: float
    advantage_at_n: float
    tpr_at_fpr: dict[str, Share]
    named: int
    named_members: int
    ci: dict[str, Interval]
    p_value: Share
    p_value_holm: Share


class Evidence(_Strict):
    """What is known about how a run went: for the participant, and for disputes."""

    exit_code: int | None = None
    reason: str = ""
    log_tail: str = ""


class MatchResult(_Strict):
    """One hider against one seeker on one split. A failed match carries the score of its cause."""

    hider: str
    seeker: str
    split: int
    status: Status
    cause: Cause | None
    membership: Membership | None
    audit: dict[str, Any] | None = None
    seconds: float
    peak_memory_bytes: int
    evidence: Evidence


class HiderResult(_Strict):
    """One hider's releases, one per split: digests and seconds in order of split."""

    status: Status
    cause: Cause | None
    release_digest: list[str | None]
    seconds: list[float]
    peak_memory_bytes: list[int]
    evidence: list[Evidence]
    utility: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None


class EntryDigest(_Strict):
    """A submission that took part."""

    name: str
    team: str
    digest: str
    parameters: dict[str, Any]


class Digests(_Strict):
    """What ran on what."""

    data: str
    hiders: list[EntryDigest]
    seekers: list[EntryDigest]


class Result(_Strict):
    """Everything that ``result.json`` holds."""

    schema_version: int = SCHEMA_VERSION
    harness_version: str
    created: str
    rules: Literal["neurips2020", "standard"]
    seed: str
    n: int
    max_seq_len: int
    splits: int
    left_out: list[str]
    truncated: int
    data: str
    columns: list[str]
    sandbox: str
    limits: dict[str, float]
    digests: Digests
    matches: list[MatchResult]
    hiders: dict[str, HiderResult]

    def write(self, path: Path) -> None:
        """Write the result as JSON, whole or not at all."""
        partial = path.with_name(path.name + ".partial")
        partial.write_text(json.dumps(self.model_dump(mode="json"), indent=2) + "\n")
        os.replace(partial, path)

    @classmethod
    def read(cls, path: Path) -> Result:
        """Read what `write` wrote; pydantic's ValidationError names a field that is off."""
        return cls.model_validate_json(path.read_text())
