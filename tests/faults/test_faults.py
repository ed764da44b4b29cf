"""Searches under faults end as if there had been none; and the judge of that sees what it should."""

import dataclasses
from collections import Counter

import pytest

from nasflow.space.architecture import Architecture
from nasflow.trial import Trial, TrialStatus
from tests.faults.campaign import Campaign
from tests.faults.command import summary
from tests.faults.judge import Outcome, judge
from tests.faults.kinds import KINDS, Fault, deal

# More than are asked for: some may come when there is nothing left to strike.
FAULTS = {
    "job-kill": 12,
    "worker-kill": 2,
    "controller-kill": 1,
    "machine-kill": 1,
    "zygote-kill": 1,
    "job-preempted": 1,
    "job-stop": 1,
    "worker-stop": 1,
    "controller-stop": 1,
    "checkpoint-cut": 1,
    "checkpoint-flipped": 1,
    "events-torn": 1,
    "database-locked": 1,
}
MORE_FAULTS = {
    "prefect-slow": 1,
    "prefect-broken": 1,
    "prefect-away": 1,
    "job-hang": 1,
    "damage-any": 2,
    "power-cut": 1,
    "read-only": 1,
    "io-error": 1,
    "controller-files": 1,
    "worker-files": 1,
    "huge-log": 1,
    "other-store": 1,
    "upgrade": 1,
    "postgresql-restarted": 1,
    "postgresql-cut": 1,
}
"""In a search of their own, on PostgreSQL where there is one."""
KILLS = 20 + 10
SEED = 57  # of the first of a kind; with it, those that take longest to go on from come well apart


@pytest.mark.long
@pytest.mark.timeout(900)
def test_nothing_is_lost_or_repeated(tmp_path):
    kinds = {kind: times for kind, times in {**FAULTS, **MORE_FAULTS}.items() if not KINDS[kind].lacking()}
    faults = [Fault(kind, SEED + number) for kind, times in kinds.items() for number in range(times)]
    report = Campaign(tmp_path, print, brief=True).strike(iter(faults), len(faults), each=sum(FAULTS.values()))
    lacking = len(FAULTS) + len(MORE_FAULTS) - len(kinds)
    assert not report.bad, summary(report)
    assert report.kills.total() >= KILLS - lacking, summary(report)


def wanted() -> Outcome:
    trials = {
        number: Trial(number=number, round=0, architecture=Architecture({"a": number}), seed=number, status=status)
        for number, status in enumerate([TrialStatus.TRAINED, TrialStatus.FAILED])
    }
    rows = {(0, 1): {"val_loss": 1.0}, (0, 2): {"val_loss": 0.5}, (1, 1): {"val_loss": None}}
    return Outcome(trials, [{"rank": 1, "trial": 0}], rows, [], Counter(rows.keys()), 2)


def test_the_judge_has_nothing_against_the_same():
    assert not judge(wanted(), wanted())


def test_the_judge_sees_lost_trials():
    right = wanted()
    assert judge(dataclasses.replace(right, trials={0: right.trials[0]}), right).lost == [1]
    for status in (TrialStatus.RUNNING, TrialStatus.FAILED):
        changed = right.trials | {0: right.trials[0].model_copy(update={"status": status})}
        assert judge(dataclasses.replace(right, trials=changed), right).lost == [0]


def test_the_judge_sees_repeated_rows_and_epochs():
    right = wanted()
    assert judge(dataclasses.replace(right, repeated=[(0, 1)]), right).duplicated == 1
    assert judge(dataclasses.replace(right, rows=right.rows | {(0, 3): {}}), right).duplicated == 1
    told = right.told + Counter([(0, 1), (0, 1), (0, 2)])
    assert judge(dataclasses.replace(right, told=told), right).retrained == 3
    assert judge(dataclasses.replace(right, told=told), right, Counter([(0, 1), (0, 2)])).retrained == 1


def test_the_judge_sees_other_scores():
    right = wanted()
    assert judge(dataclasses.replace(right, leaderboard=[]), right).differs
    assert judge(dataclasses.replace(right, rows=right.rows | {(0, 2): {"val_loss": 0.5000001}}), right).differs
    extra = right.trials | {2: right.trials[0]}
    assert judge(dataclasses.replace(right, trials=extra), right).differs


def test_the_judge_sees_litter():
    right = dataclasses.replace(wanted(), files=Counter({"jobs/#/exit.json": 1, "trials/#/epoch-#": 2}))
    for name in ("jobs/#/exit.json.new", "trials/#/epoch-#"):
        assert judge(dataclasses.replace(right, files=right.files + Counter([name])), right).litter == [name]


def test_faults_can_be_run_again():
    for kind in KINDS:
        one, other = Fault(kind, 7), Fault(kind, 7)
        assert one.instant == other.instant and one.rng.random() == other.rng.random()
        assert one.instant != Fault(kind, 8).instant
    assert deal(1, KINDS) == deal(1, KINDS) != deal(2, KINDS)
    assert set(deal(1, KINDS)) == set(KINDS)
