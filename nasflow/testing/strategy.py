"""The contract suite of strategies: inherit `StrategyContract` in a test module, and implement `make`."""

from abc import abstractmethod
from collections.abc import Sequence

import pytest

from nasflow.config.search import Objective
from nasflow.seeds import derive_seed
from nasflow.space.architecture import Architecture
from nasflow.space.pick import Pick
from nasflow.space.space import Space
from nasflow.strategy.base import Strategy
from nasflow.trial import STOP_AFTER, Trial, TrialStatus

ACCURACY = Objective(metric="val_accuracy", direction="maximize")
"""The only objective, or the first of two."""
PARAMETERS = Objective(metric="parameters", direction="minimize")
"""The second of two objectives."""


def contract_program(pick: Pick) -> None:
    """A space with every kind of domain, a conditional choice, and options that depend on another choice."""
    depth = pick.int("depth", 1, 3)
    for layer in range(depth):
        with pick.scope(f"layer{layer}"):
            if pick("kind", ["conv", "pool"]) == "conv":
                pick.int("width", 4, 64, log=True)
    pick("skip_to", list(range(depth)))
    pick.subset("norms", ["a", "b", "c"], 2)
    pick.subset("extras", ["x", "y"], None)
    pick.float("optimizer.lr", 1e-4, 1e-1, log=True)


def finished(number: int, round: int, architecture: Architecture) -> Trial:
    """Return a trial scored by its architecture, or failed (about one in four)."""
    failed = derive_seed("fails", architecture.to_json()) % 4 == 0
    widths = sum(value for label, value in architecture.items() if label.endswith("width"))
    metrics = {"val_accuracy": 1 - architecture["optimizer.lr"] - 1 / (1 + widths), "parameters": float(widths)}
    trial = Trial(
        number=number,
        round=round,
        architecture=architecture,
        seed=0,
        status=TrialStatus.FAILED if failed else TrialStatus.TRAINED,
        metrics={} if failed else metrics,
        epochs=architecture.get(STOP_AFTER, 1),
        error="it failed" if failed else None,
    )
    return Trial.model_validate_json(trial.model_dump_json())  # as read back from a study


class StrategyContract:
    """Tests every strategy's promises. For a single-objective strategy, override the fixture `objectives`."""

    per_round = 8
    rounds = 5
    program = staticmethod(contract_program)
    """The space's; a strategy that needs a label of its own overrides it."""

    @abstractmethod
    def make(self, space: Space, objectives: Sequence[Objective], seed: int) -> Strategy:
        """Return a new strategy, before any call of `ask` or `tell`."""

    def space(self) -> Space:
        """Return the space of the searches."""
        return Space(self.program)

    @pytest.fixture(params=[[ACCURACY], [ACCURACY, PARAMETERS]], ids=["one-objective", "two-objectives"])
    def objectives(self, request: pytest.FixtureRequest) -> list[Objective]:
        """The objectives of the search."""
        return list(request.param)

    def test_proposes_valid_architectures(self, objectives: list[Objective]) -> None:
        """`ask` returns the requested number of architectures, each valid in the space."""
        space = self.space()
        for trials in self._search(self.make(space, objectives, seed=0), 0, self.rounds):
            assert len(trials) == self.per_round
            for trial in trials:
                space.validate(trial.architecture)

    def test_same_seed_gives_same_proposals(self, objectives: list[Objective]) -> None:
        """Proposals depend only on the seed and the trials passed to `tell`."""
        first, again = (self.make(self.space(), objectives, seed=3) for _ in range(2))
        assert self._search(first, 0, self.rounds) == self._search(again, 0, self.rounds)

    def test_resumed_search_proposes_what_an_uninterrupted_one_does(self, objectives: list[Objective]) -> None:
        """Holds for a search killed after any round, with failed trials on record."""
        record = self._search(self.make(self.space(), objectives, seed=1), 0, self.rounds)
        assert any(trial.status is TrialStatus.FAILED for trials in record for trial in trials)
        for cut in range(1, self.rounds):
            strategy = self.make(self.space(), objectives, seed=1)
            strategy.resume(record[:cut])
            assert self._search(strategy, cut, self.rounds) == record[cut:]

    def test_resumes_within_a_round(self, objectives: list[Objective]) -> None:
        """After a kill while a round trained, `tell` gets that round without another `ask` for it."""
        record = self._search(self.make(self.space(), objectives, seed=2), 0, self.rounds)
        strategy = self.make(self.space(), objectives, seed=2)
        strategy.resume(record[:1])
        strategy.tell(record[1])
        assert self._search(strategy, 2, self.rounds) == record[2:]

    def test_asked_ahead_a_resumed_search_proposes_what_an_uninterrupted_one_does(
        self, objectives: list[Objective]
    ) -> None:
        """Holds with `budget.rounds_ahead`, too, if the strategy can be asked ahead."""
        if not self.make(self.space(), objectives, seed=0).asks_ahead:
            return
        record = self._search_ahead(self.make(self.space(), objectives, seed=4), [])
        for cut in (1, 2, 4):
            assert self._search_ahead(self.make(self.space(), objectives, seed=4), record[:cut]) == record

    def test_failed_trials_are_harmless(self, objectives: list[Objective]) -> None:
        """Failed trials are harmless, even if all trials failed."""
        space = self.space()
        strategy = self.make(space, objectives, seed=0)
        for round in range(3):
            asked = strategy.ask(4)
            assert len(asked) == 4
            failed = {"status": TrialStatus.FAILED, "metrics": {}}
            strategy.tell([finished(4 * round + i, round, a).model_copy(update=failed) for i, a in enumerate(asked)])

    def test_a_metric_that_is_missing_or_not_finite_is_harmless(self, objectives: list[Objective]) -> None:
        """The strategy learns nothing from such a trial."""
        strategy = self.make(self.space(), objectives, seed=0)
        scores: list[dict[str, float]] = [{}, {"val_accuracy": float("nan"), "parameters": float("inf")}]
        for round in range(2):
            trials = [finished(4 * round + i, round, a) for i, a in enumerate(strategy.ask(4))]
            scored = {"status": TrialStatus.TRAINED, "metrics": scores[round]}
            strategy.tell([trial.model_copy(update=scored) for trial in trials])
        assert len(strategy.ask(4)) == 4

    def test_never_gives_more_than_was_asked_for(self, objectives: list[Objective]) -> None:
        """`ask(0)` returns nothing."""
        strategy = self.make(self.space(), objectives, seed=0)
        assert strategy.ask(0) == []
        strategy.tell([])
        assert len(strategy.ask(1)) == 1

    def _search(self, strategy: Strategy, first: int, last: int) -> list[list[Trial]]:
        """Run rounds `first` to `last - 1` and return their trials."""
        record = []
        for round in range(first, last):
            start = round * self.per_round
            asked = strategy.ask(self.per_round)
            record.append([finished(start + place, round, architecture) for place, architecture in enumerate(asked)])
            strategy.tell(record[-1])
        return record

    def _search_ahead(self, strategy: Strategy, known: Sequence[Sequence[Trial]], ahead: int = 2) -> list[list[Trial]]:
        """Run all rounds, the `known` ones from the record; each knows the results of those before the `ahead` last."""
        record: list[list[Trial]] = []
        for round in range(self.rounds):
            if round > ahead:
                strategy.tell(record[round - 1 - ahead])
            if round < len(known):
                without = {"status": TrialStatus.RUNNING, "metrics": {}, "epochs": 0, "error": None}
                strategy.proposed([trial.model_copy(update=without) for trial in known[round]])
                record.append(list(known[round]))
            else:
                asked = strategy.ask(self.per_round)
                start = round * self.per_round
                record.append([finished(start + place, round, one) for place, one in enumerate(asked)])
        return record
