"""TimeGAN as a hider: train on the members, release sequences drawn from the model.

Source: Yoon, Jarrett and van der Schaar, *Time-series Generative Adversarial Networks*, NeurIPS
2019. What differs from the 2020 competition's baseline is said in README.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from data_preprocess import Scaling, preprocess_standard, unscale

if TYPE_CHECKING:  # Inside the submission its own folder is on the import path.
    from hiders.timegan import observation
    from hiders.timegan.training import Settings, TimeGan
else:
    import observation
    from training import Settings, TimeGan

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

PROFILES = {
    # A demonstration: well under a minute for 300 patients on two cores.
    "fast": Settings(
        hidden=16,
        batch=32,
        embedding_iterations=300,
        supervised_iterations=100,
        joint_iterations=150,
        learning_rate=2e-2,
    ),
    "full": Settings(),
    # The 2020 competition's baseline.
    "neurips2020": Settings(
        hidden=10,
        embedding_iterations=20_000,
        supervised_iterations=20_000,
        joint_iterations=20_000,
    ),
}


def hider(input_dict: dict[str, Any]) -> tuple[Floats, Bools]:
    """Release patients drawn from a TimeGAN trained on the members.

    Parameters
    ----------
    input_dict : dict
        ``data``: float64 array (patients, steps, 1 + features), raw, NaN = missing;
        ``padding_mask``: bool array of that shape, True = padding; ``seed``: int;
        ``parameters``: dict, see README.md.

    Returns
    -------
    data : float64 array of the input's shape
        Under the ``standard`` rules in raw units, NaN = not measured, -1 = padding (at the
        front); under ``neurips2020`` imputed and scaled, time in raw units since the patient's
        first row.
    padding_mask : bool array, same shape

    Raises
    ------
    ValueError
        An unknown profile or rules, an unusable parameter, or data without a single row.
    """
    data = np.asarray(input_dict["data"], dtype=np.float64)
    padding_mask = np.asarray(input_dict["padding_mask"], dtype=bool)
    parameters = input_dict.get("parameters") or {}
    rules = parameters.get("rules", "standard")
    if rules not in ("standard", "neurips2020"):
        raise ValueError(f"Unknown rules {rules!r}: expected standard or neurips2020.")
    settings = read_settings(parameters)
    if padding_mask.all():
        raise ValueError("The data hold no row: every cell is padding.")
    rng = np.random.default_rng(int(input_dict.get("seed", 0)) % 2**63)

    members = preprocess_standard(data, padding_mask)
    sequences = observation.align_left(members.values, members.measured, padding_mask)
    model = TimeGan(sequences, settings, rng)
    model.train(lambda line: print(line, flush=True))

    patients = len(data)
    made_mask, measured = observation.draw_observation(sequences, patients, rng)
    values = observation.align_right(model.sample(patients), made_mask)
    values[:, :, 0] = observation.in_time_order(values[:, :, 0], made_mask[:, :, 0])
    low, high = _ranges(data, members.measured)
    # Rounding in the scaling may leave the range by its last digit.
    release = np.clip(unscale(values, members.scaling), low, high)
    release[~measured] = np.nan
    release[made_mask] = -1.0
    if rules == "neurips2020":
        release = _as_in_2020(release, made_mask, members.scaling)
    return release, made_mask


def read_settings(parameters: Mapping[str, Any]) -> Settings:
    """Profile first, then whatever the parameters set on top.

    Parameters
    ----------
    parameters : mapping
        ``profile``, ``rules``, ``iterations`` (of all three phases) and the fields of
        `Settings`. Under the ``neurips2020`` rules the ``full`` profile is 2020's. Other keys
        are left alone.

    Returns
    -------
    Settings

    Raises
    ------
    ValueError
        An unknown profile or an unusable value.
    """
    profile = parameters.get("profile") or "full"
    if profile == "full" and parameters.get("rules") == "neurips2020":
        profile = "neurips2020"
    if profile not in PROFILES:
        raise ValueError(f"Unknown profile {profile!r}: expected one of {', '.join(PROFILES)}.")
    settings = PROFILES[profile]
    chosen: dict[str, Any] = {}
    if parameters.get("iterations") is not None:
        iterations = parameters["iterations"]
        for phase in ("embedding", "supervised", "joint"):
            chosen[f"{phase}_iterations"] = iterations
    types = {field.name: type(getattr(settings, field.name)) for field in fields(Settings)}
    chosen.update({k: v for k, v in parameters.items() if k in types and v is not None})
    if str(chosen.get("compile")).lower() in ("false", "no", "off"):
        chosen["compile"] = False
    try:
        return replace(settings, **{name: types[name](value) for name, value in chosen.items()})
    except (TypeError, ValueError) as error:
        raise ValueError(f"Unusable parameter of the timegan hider: {error}") from error


def _ranges(data: Floats, measured: Bools) -> tuple[Floats, Floats]:
    """Smallest and largest measured value per column; unbounded for an empty column."""
    low, high = np.full(data.shape[2], -np.inf), np.full(data.shape[2], np.inf)
    for column in range(data.shape[2]):
        seen = data[:, :, column][measured[:, :, column]]
        if seen.size:
            low[column], high[column] = seen.min(), seen.max()
    return low, high


def _as_in_2020(release: Floats, padding_mask: Bools, scaling: Scaling) -> Floats:
    """Return a raw release in 2020's form: imputed, scaled by the members, time unscaled."""
    filled = preprocess_standard(release, padding_mask, scaling).values
    time = unscale(filled, scaling)[:, :, 0]
    start = np.where(padding_mask[:, :, 0], np.inf, time).min(axis=1, keepdims=True)
    filled[:, :, 0] = time - start
    filled[padding_mask] = -1.0
    return filled
