"""Template for a seeker: copy this folder, change `seeker`, keep its signature."""

from typing import Any

import numpy as np
from sklearn.neighbors import NearestNeighbors

from data_preprocess import fit_scaling, preprocess_standard


def seeker(input_dict: dict[str, Any]) -> Any:
    """Say of each patient in the enlarged data how likely it was a member.

    Parameters
    ----------
    input_dict : dict
        ``generated_data``: (N, T, 1 + features), the release; ``enlarged_data``: (2N, T, 1 +
        features), of whom N were members; ``generated_data_padding_mask``: bool or None;
        ``enlarged_data_padding_mask``: bool. ``seed``: int, which tells nothing of the split.
        ``parameters``: dict, from ``submission.yml`` and the command line, with ``rules`` added.

    Returns
    -------
    array (2N,)
        Higher = more likely a member; the N highest are named. 0 and 1 are fine too.
    """
    enlarged, mask = input_dict["enlarged_data"], input_dict["enlarged_data_padding_mask"]
    scaling = fit_scaling(enlarged, mask)
    real = preprocess_standard(enlarged, mask, scaling).values
    released = preprocess_standard(
        input_dict["generated_data"], input_dict["generated_data_padding_mask"], scaling
    ).values

    # What a patient was like on average, against the nearest released averages.
    k = min(int(input_dict["parameters"].get("neighbours", 3)), len(released))
    index = NearestNeighbors(n_neighbors=k).fit(released.mean(axis=1))
    distances, _ = index.kneighbors(real.mean(axis=1))
    print("compared", len(real), "patients", flush=True)  # shown while it runs
    return -np.asarray(distances).mean(axis=1)
