"""Where the hiders, seekers and templates that come with the project are found."""

from __future__ import annotations

from pathlib import Path

import harness
from harness.submission import Kind, Refused


def shipped() -> Path:
    """Return the folder that holds ``hiders/``, ``seekers/`` and ``submissions/``.

    A wheel carries them inside the package; a checkout has them beside it.
    """
    package = Path(harness.__file__).parent
    inside = package / "_shipped"
    return inside if inside.is_dir() else package.parent


def names(kind: Kind) -> list[str]:
    """Return the names of the baselines of one track."""
    return sorted(file.parent.name for file in (shipped() / f"{kind}s").glob(f"*/{kind}.py"))


def find(given: str, kind: Kind) -> Path:
    """Return the path of a submission: a path as given, else a baseline's name.

    Raises
    ------
    Refused
        It is neither; the sentence lists the baselines.
    """
    if Path(given).exists():
        return Path(given)
    last = Path(given).name
    if last in names(kind) and given in (last, f"{kind}s/{last}"):
        return shipped() / f"{kind}s" / last
    raise Refused(
        f"{given}: there is no such file or folder, and no baseline {kind} of that name "
        f"({', '.join(names(kind))})."
    )
