"""What was measured in each charted row.

Measurements come in panels: the monitor, the arterial line, the ventilator, the blood gas, the
laboratory. Each panel is drawn for whole rows, and its columns are thinned from it, so that values
arrive together and each column keeps its rate.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from harness.simulate.charting import Chart
from harness.simulate.facts import Facts, Floats

Mask = npt.NDArray[np.bool_]

# Chance of a panel by Kind, counted in PhysioNet 2012's set-a.
MONITOR_BY_KIND = (0.98, 0.80, 0.52, 0.05)
GAS_BY_KIND = (0.004, 0.03, 0.13, 0.44)
# Relative to the odd minutes, at which most blood is drawn.
BLOOD_BY_KIND = (0.05, 0.17, 0.45, 1.0)
# Rows with a blood count, chemistry or both: a little more than the most frequent column.
BLOOD_RATE = 0.064
ADMISSION_HOURS = 6.0

TEMPERATURE_SITES = (
    "temp_blood",
    "temp_rectal",
    "temp_groin",
    "temp_axillary",
    "temp_ear",
    "temp_skin",
    "temp_bladder",
    "temp_oesophagus",
)
VENTILATOR = (
    "rr_ventilator",
    "exp_mv",
    "exp_tidal",
    "tidal_volume",
    "paw_mean",
    "fio2_measured",
    "ppeak",
    "fio2_set",
    "peep_set",
)
GAS = (
    "ph",
    "pco2",
    "po2",
    "hco3",
    "be_abg",
    "spo2_abg",
    "sodium_abg",
    "potassium_abg",
    "hb_abg",
    "calcium_ion",
)
CHEMISTRY = ("sodium", "potassium", "chloride", "creatinine", "urea", "magnesium", "glucose")
BLOOD_COUNT = ("hb", "ht", "thrombocytes", "leucocytes")
LIVER = ("bilirubin", "alat", "asat", "alk_phos", "ggt", "ldh", "amylase")
CARDIAC = ("ck", "ckmb_mass", "troponin_t")


class Observer:
    """Draws the measured cells of one cohort.

    Parameters
    ----------
    rng : numpy.random.Generator
        Where the chance comes from.
    chart : Chart
        The rows, R in all, of P patients.
    facts : Facts
        The rates that the cohort keeps.
    """

    def __init__(self, rng: np.random.Generator, chart: Chart, facts: Facts) -> None:
        self.rng = rng
        self.chart = chart
        self.facts = facts
        self.rates = {column.name: column.rate for column in facts.columns}
        self.patients = len(chart.counts)
        self.rows = len(chart.who)
        self.mask: Mask = np.zeros((self.rows, len(facts.columns)), dtype=bool, order="F")

    def measured(self, name: str) -> Mask:
        """Return the writable mask of the column called `name`, shape [R]."""
        return np.asarray(self.mask[:, self.facts.index(name)])

    def patients_where(self, share: float, *, sick: float = 0.0) -> Mask:
        """Draw a share of the patients; `sick` is the correlation with acuity. Shape [R]."""
        chance = self.rng.standard_normal(self.patients)
        drawn = np.sqrt(1.0 - sick**2) * chance - sick * self.chart.acuity < ndtri(share)
        return np.asarray(drawn[self.chart.who])

    def evenly(self) -> Floats:
        """Deal each patient a share in [0, 1), evenly: small groups keep their size. Shape [R]."""
        dealt = self.rng.permutation(self.patients) + self.rng.random(self.patients)
        return np.asarray((dealt / self.patients)[self.chart.who])

    def until(self, never: float) -> Mask:
        """Draw when something is taken away: never for a share of the patients. Shape [R]."""
        end = np.where(
            self.rng.random(self.patients) < never, np.inf, self.rng.random(self.patients) * 48
        )
        return np.asarray(self.chart.minute < 60.0 * end[self.chart.who])

    def now_and_then(self, weight: Floats, rate: float) -> Mask:
        """Draw rows at regular distances in accumulated weight; `rate` of all rows. Shape [R].

        Laboratory rounds have a rhythm: two draws within minutes are rarer than chance has it.
        """
        chance = _scaled(weight, rate)
        ends = np.cumsum(chance)
        before = (ends - chance)[self.chart.starts]
        clock = ends - before[self.chart.who] + self.rng.random(self.patients)[self.chart.who]
        return np.asarray(np.floor(clock) > np.floor(clock - chance))

    def in_rhythm(self, suitable: Mask, pace: Floats, rate: float) -> Mask:
        """Draw the first suitable row after each tick of a patient's clock, `rate` of all rows.

        `pace`, of shape [R], is how fast each patient's clock runs against the others'. The clock
        has run for some hours at admission, when a first draw is likely. Shape [R].
        """
        at = np.nonzero(suitable)[0]
        who = self.chart.who[at]
        first = np.concatenate([[True], who[1:] != who[:-1]])[: len(at)]
        hours = (self.chart.minute[at] / 60.0 + ADMISSION_HOURS) * pace[at]
        phase = self.rng.random(self.patients)[who]

        def ticked(interval: float) -> Mask:
            tick = np.floor(hours / interval + phase)
            return np.asarray(tick > np.where(first, 0.0, np.concatenate([[0.0], tick])[: len(at)]))

        # The longer the interval the fewer the draws.
        shortest, longest = 0.1, 1000.0
        for _ in range(20):
            middle = np.sqrt(shortest * longest)
            enough = int(ticked(middle).sum()) >= rate * self.rows
            shortest, longest = (middle, longest) if enough else (shortest, middle)
        drawn = np.zeros(self.rows, dtype=bool)
        drawn[at] = ticked(shortest)
        return drawn

    def thinned(self, candidates: Mask, rate: float) -> Mask:
        """Keep as many candidates as make `rate` of all rows, by chance. Shape [R]."""
        kept = np.zeros(self.rows, dtype=bool)
        keep = min(1.0, rate * self.rows / max(1, int(candidates.sum())))
        kept[candidates] = self.rng.random(int(candidates.sum())) < keep
        return kept

    def together(self, names: Sequence[str], panel: Mask, likeness: float = 0.95) -> None:
        """Measure `names` in the panel's rows, each at its own rate, mostly all or few of them."""
        size = int(panel.sum())
        shared = self.rng.standard_normal(size)
        for name in names:
            own = self.rng.standard_normal(size)
            level = likeness * shared + np.sqrt(1.0 - likeness**2) * own
            keep = min(1.0, self.rates[name] * self.rows / max(1, size))
            self.measured(name)[panel] = level < ndtri(keep)

    def per_patient(self, spread: float) -> Floats:
        """Draw how often each patient gets something, log-normal around 1. Shape [R]."""
        drawn = np.exp(spread * self.rng.standard_normal(self.patients))
        return np.asarray(drawn[self.chart.who])

    def by_kind(self, chances: Sequence[float]) -> Floats:
        """Look up one chance per row by its kind. Shape [R]."""
        return np.asarray(np.array(chances)[self.chart.kind])


def _scaled(weight: Floats, rate: float) -> Floats:
    """Scale weights to chances of at most 0.98 whose mean is `rate`, as far as that goes."""
    chance = weight * (rate / max(float(weight.mean()), 1e-12))
    for _ in range(8):
        chance = np.minimum(chance, 0.98)
        chance = chance * (rate / max(float(chance.mean()), 1e-12))
    return np.minimum(chance, 0.98)


def draw_measured(rng: np.random.Generator, chart: Chart, facts: Facts) -> Mask:
    """Draw which cells were measured.

    Parameters
    ----------
    rng : numpy.random.Generator
        Where the chance comes from.
    chart : Chart
        The rows.
    facts : Facts
        The rates.

    Returns
    -------
    Mask
        Shape [R, 70], column-major; at least one cell in every row.
    """
    seen = Observer(rng, chart, facts)
    rates = seen.rates
    has_line = seen.patients_where(0.72, sick=0.4)
    on_line = has_line & seen.until(never=0.85)
    ventilated = seen.patients_where(0.72, sick=0.4) & seen.until(never=0.78)

    _draw_blood(seen, has_line)

    # Nobody opens a chart for nothing: a row without blood in it has the monitor or, where there
    # is one, the ventilator.
    idle = ~seen.mask.any(axis=1)
    monitored = seen.patients_where(0.985)
    forced = idle & monitored & ~ventilated
    chance = np.where(forced, 0.0, seen.by_kind(MONITOR_BY_KIND) * monitored)
    share_left = max(0.0, rates["hr"] - float(forced.mean()))
    heart = seen.measured("hr")
    heart[:] = forced | (rng.random(seen.rows) < _scaled(chance, share_left))
    settings = idle & ~heart & ventilated
    forced = idle & ~heart & ~ventilated
    share_left = max(0.0, rates["spo2"] - float(forced.mean()))
    seen.measured("spo2")[:] = forced | seen.thinned(heart, share_left)
    breathing = heart & seen.patients_where(0.995)
    seen.measured("rr_monitor")[:] = seen.thinned(breathing, rates["rr_monitor"])

    line_rows = seen.thinned(heart & on_line, rates["sbp"])
    seen.together(("sbp", "dbp", "map"), line_rows, likeness=0.99)
    central = heart & seen.patients_where(0.60, sick=0.4)
    seen.measured("cvp")[:] = seen.now_and_then(
        central * seen.per_patient(0.6) * seen.by_kind((1.0, 0.3, 0.1, 0.0)), rates["cvp"]
    )

    share_left = max(0.0, rates["peep_set"] - float(settings.mean()))
    breaths = settings | seen.thinned(heart & ventilated & ~settings, share_left)
    _draw_ventilator(seen, breaths)
    seen.measured("peep_set")[settings] = True
    _draw_temperature(seen, heart)
    return seen.mask


def _draw_blood(seen: Observer, has_line: Mask) -> None:
    """Draw blood gases and laboratory panels."""
    rates = seen.rates
    gas_patients = seen.patients_where(0.76, sick=0.5)
    weight = seen.by_kind(GAS_BY_KIND) * seen.per_patient(0.5) * np.where(has_line, 1.5, 0.8)
    gas = seen.now_and_then(weight * gas_patients, max(rates[name] for name in GAS) * 1.01)
    seen.together(GAS, gas)
    seen.measured("lactate")[:] = seen.now_and_then(
        (gas & seen.patients_where(0.75, sick=0.4)) * seen.per_patient(0.5), rates["lactate"]
    )

    suitable = seen.rng.random(seen.rows) < seen.by_kind(BLOOD_BY_KIND)
    suitable &= seen.patients_where(0.995)
    blood = seen.in_rhythm(suitable, seen.per_patient(0.15), BLOOD_RATE)
    seen.together(CHEMISTRY, blood)
    seen.together(BLOOD_COUNT, blood)
    minerals = seen.measured("sodium") & seen.patients_where(0.86)
    seen.together(("calcium", "phosphate", "crp"), minerals, likeness=0.8)

    albumin = seen.measured("calcium") & seen.patients_where(0.45)
    seen.measured("albumin")[:] = seen.now_and_then(albumin.astype(float), rates["albumin"])
    corrected = seen.measured("albumin")
    seen.measured("calcium_albc")[:] = seen.thinned(corrected, rates["calcium_albc"])

    liver = (blood & seen.patients_where(0.50)) * seen.per_patient(0.3)
    seen.together(LIVER, seen.now_and_then(liver, rates["ldh"] * 1.02), likeness=0.95)
    heart = ((blood | gas) & seen.patients_where(0.45)) * seen.per_patient(0.5)
    seen.together(CARDIAC, seen.now_and_then(heart, rates["ck"] * 1.02), likeness=0.8)
    _draw_clotting(seen, blood)


def _draw_clotting(seen: Observer, blood: Mask) -> None:
    """Draw clotting tests: old or new assay, by when the patient was admitted."""
    admitted = seen.evenly()
    clotted = seen.patients_where(0.92)
    rates = seen.rates
    totals = {kind: rates[f"{kind}_old"] + rates[f"{kind}_new"] for kind in ("pt_inr", "aptt")}
    panel = seen.now_and_then((blood & clotted) * seen.per_patient(0.3), max(totals.values()))
    for kind, total in totals.items():
        taken = seen.thinned(panel, total)
        old = admitted < rates[f"{kind}_old"] / total
        seen.measured(f"{kind}_old")[:] = taken & old
        seen.measured(f"{kind}_new")[:] = taken & ~old


def _draw_ventilator(seen: Observer, breaths: Mask) -> None:
    """Draw the ventilator's columns: controlled breathing first, support later."""
    seen.together(VENTILATOR, breaths, likeness=0.99)
    controlled = seen.patients_where(0.5, sick=0.3) & seen.until(never=0.45)
    mixed = seen.patients_where(0.5)
    seen.together(("rr_set", "pc_over_peep"), breaths & controlled, likeness=0.95)
    supported = breaths & (~controlled | mixed)
    seen.together(("ps_over_peep", "mv_spontaneous"), supported, likeness=0.8)
    capnograph = breaths & seen.patients_where(0.70)
    seen.measured("etco2")[:] = seen.thinned(capnograph, seen.rates["etco2"])


def _draw_temperature(seen: Observer, heart: Mask) -> None:
    """Draw temperatures: every patient has one site."""
    shares = np.array([seen.rates[site] for site in TEMPERATURE_SITES])
    weight = heart * seen.per_patient(0.5) * seen.by_kind((1.0, 0.8, 0.8, 0.2))
    taken = seen.now_and_then(weight, float(shares.sum()))
    limits = np.cumsum(shares) / shares.sum()
    site = np.searchsorted(limits[:-1], seen.evenly(), side="right")
    for number, name in enumerate(TEMPERATURE_SITES):
        seen.measured(name)[:] = taken & (site == number)
