"""Matches from end to end in the local sandbox: closed cases, secrecy, failures, repetition."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from data_preprocess import Rules
from harness.cohort import Cohort, Split
from harness.failures import Cause
from harness.match import Release, Setting, submission_seed
from harness.play import Plan, Played, play, safe_name
from harness.result import MatchResult, Result
from harness.sandbox import Limits, LocalSandbox, Outcome
from harness.submission import Resources, Submission, load_submission
from tests.conftest import ROOT, random_cohort

COPY = "def hider(d):\n    return d['data'], d['padding_mask']\n"
NOISE = (
    "import numpy as np\ndef hider(d):\n"
    "    r = np.random.default_rng(d['seed'])\n"
    "    return r.normal(size=d['data'].shape), d['padding_mask']\n"
)
EXACT = """
import numpy as np
def seeker(d):
    e, g = d['enlarged_data'], d['generated_data']
    known = {x.tobytes() for x in np.nan_to_num(g, nan=1e9)}
    return [x.tobytes() in known for x in np.nan_to_num(e, nan=1e9)]
"""
RANDOM = (
    "import numpy as np\ndef seeker(d):\n"
    "    return np.random.default_rng(d['seed']).random(len(d['enlarged_data']))\n"
)
PERMUTATION = """
import numpy as np
def seeker(d):
    n = len(d['enlarged_data'])
    np.random.seed(d['seed'])
    named = np.zeros(n)
    named[np.random.permutation(n)[:n // 2]] = 1
    return named
"""
CRASH = "raise SystemError('by design')\ndef seeker(d): pass\n"
CRASH_HIDER = "def hider(d):\n    raise SystemError('by design')\n"
ROW_ORDER = "import numpy as np\ndef seeker(d):\n    return -np.arange(len(d['enlarged_data']))\n"


class Silent:
    """A watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def started(self, what: str) -> None:
        self.events.append(f"> {what}")

    def line(self, text: str) -> None: ...

    def ended(self, what: str, outcome: Outcome) -> None:
        self.events.append(f"< {what} {outcome.cause}")

    def passed_over(self, what: str) -> None:
        self.events.append(f"x {what}")


class Table:
    """Writes submissions from their text and plays them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.out.mkdir()
        self.watcher = Silent()

    def entry(self, name: str, text: str) -> Submission:
        root = self.folder / name
        root.mkdir(exist_ok=True)
        kind = "hider" if "def hider" in text else "seeker"
        (root / f"{kind}.py").write_text(text)
        return load_submission(root, self.folder)

    def play(
        self,
        hiders: dict[str, str],
        seekers: dict[str, str],
        cohort: Cohort | None = None,
        secret: str = "secret",
        splits: int = 1,
    ) -> Played:
        plan = Plan(
            tuple(self.entry(name, text) for name, text in hiders.items()),
            tuple(self.entry(name, text) for name, text in seekers.items()),
            secret,
            splits=splits,
            limits=Limits(seconds=30),
        )
        cohort = cohort or random_cohort(40, steps=5, features=2)
        return play(cohort, plan, LocalSandbox(), self.out, self.watcher, "random cohort")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def only(played: Played) -> MatchResult:
    (match,) = played.result.matches
    return match


def test_copy_hider_is_named_exactly(table: Table) -> None:
    match = only(table.play({"copy": COPY}, {"exact": EXACT}))
    assert match.membership is not None
    assert match.membership.accuracy == 1.0
    assert match.membership.auc == 1.0
    assert match.membership.p_value < 1e-9


def test_copy_hider_is_named_exactly_by_the_nearest_neighbour(table: Table) -> None:
    seeker = load_submission(ROOT / "seekers" / "nearest_neighbour", table.folder)
    both: tuple[Rules, Rules] = ("standard", "neurips2020")
    for rules in both:
        plan = Plan((table.entry("copy", COPY),), (seeker,), "s", rules=rules)
        cohort = random_cohort(60, steps=5, features=3, seed=8)
        played = play(cohort, plan, LocalSandbox(), table.out, table.watcher, "x")
        membership = only(played).membership
        assert membership is not None
        if rules == "standard":
            assert (membership.accuracy, membership.auc) == (1.0, 1.0)
        else:
            # Preprocessing each side on its own moves the release a little, as in 2020.
            assert membership.accuracy >= 0.85


@pytest.mark.parametrize(("name", "text"), [("permutation", PERMUTATION), ("order", ROW_ORDER)])
def test_attack_split_rebuilt_from_the_seed_or_the_order(
    table: Table, name: str, text: str
) -> None:
    """2020 handed the split's seed to the seeker: permutation(2N)[:N] then named every member."""
    accuracies = []
    for secret in range(6):
        played = table.play({"copy": COPY}, {name: text}, random_cohort(400, 2, 1), str(secret))
        membership = only(played).membership
        assert membership is not None
        accuracies.append(membership.accuracy)
    # Chance has a standard deviation of 0.354 / sqrt(200) = 0.025.
    assert np.abs(np.array(accuracies) - 0.5).max() < 0.1
    assert np.mean(accuracies) == pytest.approx(0.5, abs=4 * 0.025 / np.sqrt(6))


def test_submissions_seeds_do_not_depend_on_the_secret(table: Table) -> None:
    entry = table.entry("random", RANDOM)
    first, other = Setting(0, "a", Limits()), Setting(0, "b", Limits())
    assert submission_seed(entry, first) == submission_seed(entry, other)
    assert submission_seed(entry, first) != submission_seed(entry, Setting(1, "a", Limits()))
    hider = table.entry("noise", NOISE)
    # A public seed would let a seeker draw the hider's noise again and take it away.
    assert submission_seed(hider, first) != submission_seed(hider, other)
    played = [table.play({"noise": NOISE}, {"random": RANDOM}, secret=s) for s in ("a", "b")]
    same = [p.guesses[0].scores for p in played]
    np.testing.assert_array_equal(same[0], same[1])
    assert (played[0].guesses[0].truth != played[1].guesses[0].truth).any()


def test_attack_row_order_of_a_release(table: Table) -> None:
    """A hider that keeps its rows in order tells nothing: the seeker sees them shuffled."""
    cohort = random_cohort(40, steps=5, features=2)
    played = table.play({"copy": COPY}, {"exact": EXACT}, cohort)
    release = played.releases["copy"]
    split = Split.load(table.out / "splits" / "0.npz")
    members = cohort.take(split.members)
    assert (release.order != np.arange(20)).any()
    np.testing.assert_array_equal(release.data, members.data[release.order])
    assert release.padding_mask is not None
    np.testing.assert_array_equal(release.padding_mask, members.padding_mask[release.order])


def test_same_secret_same_result_to_the_last_digit(table: Table) -> None:
    runs = [
        table.play({"noise": NOISE, "copy": COPY}, {"random": RANDOM, "exact": EXACT}, splits=2)
        for _ in range(2)
    ]
    first, second = (
        [m.model_dump(exclude={"seconds", "peak_memory_bytes"}) for m in run.result.matches]
        for run in runs
    )
    assert first == second
    assert [h.release_digest for h in runs[0].result.hiders.values()] == [
        h.release_digest for h in runs[1].result.hiders.values()
    ]


def test_failures_are_scored_and_stop_nothing(table: Table) -> None:
    played = table.play({"bad": CRASH_HIDER, "copy": COPY}, {"broken": CRASH, "exact": EXACT})
    found = {(m.hider, m.seeker): m for m in played.result.matches}
    assert len(found) == 4
    for seeker in ("broken", "exact"):
        match = found["bad", seeker]
        assert (match.status, match.cause) == ("failed", Cause.CRASH)
        assert match.membership is not None
        assert match.membership.accuracy == 1.0
        assert "by design" in match.evidence.reason
    broken = found["copy", "broken"]
    assert (broken.status, broken.cause) == ("failed", Cause.CRASH)
    assert broken.membership is not None
    assert broken.membership.accuracy == 0.5
    assert "SystemError: by design" in broken.evidence.log_tail
    assert found["copy", "exact"].status == "done"
    assert played.result.hiders["bad"].status == "failed"
    assert "x bad x exact" in table.watcher.events


def test_harness_bug_is_retried_then_pending_and_not_scored(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def bug(*_: object) -> Outcome:
        calls.append(1)
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(LocalSandbox, "run", bug)
    match = only(table.play({"copy": COPY}, {"exact": EXACT}))
    assert len(calls) == 3
    assert (match.status, match.cause, match.membership) == ("pending", Cause.HARNESS_BUG, None)


def test_infrastructure_that_recovers_is_no_failure(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = LocalSandbox.run, []

    def flaky(self: LocalSandbox, *rest: object) -> Outcome:
        calls.append(1)
        if len(calls) == 1:
            return Outcome(Cause.WORKER_LOST, None)
        return real(self, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(LocalSandbox, "run", flaky)
    assert only(table.play({"copy": COPY}, {"exact": EXACT})).status == "done"


def test_holm_is_over_the_seekers_that_faced_a_hider(table: Table) -> None:
    played = table.play({"copy": COPY}, {"exact": EXACT, "random": RANDOM, "broken": CRASH})
    found = {m.seeker: m.membership for m in played.result.matches}
    exact = found["exact"]
    assert exact is not None
    assert exact.p_value_holm == pytest.approx(3 * exact.p_value)


def test_rescore_brings_back_the_release_of_the_same_split_only(table: Table) -> None:
    rescore = "def hider(d):\n    return 'rescore'\n"
    first = table.play({"h": COPY}, {"exact": EXACT})
    again = table.play({"h": rescore}, {"exact": EXACT})
    assert only(again).status == "done"
    assert again.result.hiders["h"].release_digest == first.result.hiders["h"].release_digest
    other = table.play({"h": rescore}, {"exact": EXACT}, secret="another")
    assert only(other).cause is Cause.BAD_OUTPUT
    assert "no earlier release" in only(other).evidence.reason


def test_result_json_is_stable_and_complete(table: Table) -> None:
    played = table.play({"copy": COPY}, {"exact": EXACT}, random_cohort(41, 4, 2), splits=2)
    text = (table.out / "result.json").read_text()
    assert Result.read(table.out / "result.json") == played.result
    raw = json.loads(text)
    assert raw["schema_version"] == 1
    assert raw["n"] == 20
    assert len(raw["left_out"]) == 2
    assert set(raw["matches"][0]) == {
        "hider", "seeker", "split", "status", "cause", "membership", "audit", "seconds",
        "peak_memory_bytes", "evidence",
    }  # fmt: skip
    assert {"accuracy", "auc", "advantage", "tpr_at_fpr", "ci", "p_value"} <= set(
        raw["matches"][0]["membership"]
    )
    assert set(raw["matches"][0]["membership"]["tpr_at_fpr"]) == {"0.001", "0.01", "0.1"}


def test_names_of_strangers_are_safe_file_names(table: Table) -> None:
    names = ["../../etc/x", "my hider (2)", ".hidden", "a/b", "a_b", "ä", ""]
    safe = [safe_name(name) for name in names]
    assert len(set(safe)) == len(safe)
    for name in safe:
        assert Path(name).name == name
        assert not name.startswith(".")


def test_release_survives_saving(tmp_path: Path) -> None:
    data = np.random.default_rng(0).normal(size=(3, 2, 2))
    for mask, count in ((None, None), (data > 0, 3)):
        release = Release(data, mask, count, np.array([2, 0, 1]))
        release.save(tmp_path / "r.npz")
        back = Release.load(tmp_path / "r.npz")
        assert (back.digest, back.n_features) == (release.digest, count)
        np.testing.assert_array_equal(back.order, release.order)


def test_release_order_hangs_on_the_secret(table: Table) -> None:
    orders = [
        table.play({"copy": COPY}, {"exact": EXACT}, secret=s).releases["copy"].order
        for s in ("a", "b")
    ]
    assert (orders[0] != orders[1]).any()


def test_what_a_submission_asks_for_is_capped_by_the_rules() -> None:
    caps = Limits(memory=1000, seconds=10)
    assert caps.capping(Resources(memory=500, time_limit=20)) == Limits(500, 10)
    assert caps.capping(Resources(memory=5000, time_limit=2)) == Limits(1000, 2)
    assert caps.capping(Resources()) == caps


def test_rules_of_a_match_cannot_be_overridden(table: Table) -> None:
    entry = table.entry("copy", COPY)
    plan = Plan((entry,), (), "s", "neurips2020", parameters={"copy": {"rules": "mine", "a": 1}})
    assert plan.entry(entry).parameters == {"a": 1, "rules": "neurips2020"}
