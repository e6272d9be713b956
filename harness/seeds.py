"""Seeds derived by hashing the names of what they depend on, never by arithmetic on one seed."""

from __future__ import annotations

import hashlib


def derive_seed(*names: str | int, bits: int = 128) -> int:
    """Return a seed that depends on every name and on nothing else.

    Parameters
    ----------
    *names : str or int
        What the seed is for, for example ``("split", secret, "0")``. Order matters.
    bits : int
        Length of the seed; submissions get 31 bits, which every library takes.

    Returns
    -------
    int
        In [0, 2**bits). SHA-256 of the length-prefixed names, so that no two lists of names
        collide by concatenation.
    """
    digest = hashlib.sha256()
    for name in names:
        text = str(name).encode()
        digest.update(len(text).to_bytes(8, "big") + text)
    return int.from_bytes(digest.digest(), "big") >> (256 - bits)
