"""What Optuna logs while it proposes architectures."""

import logging
from pathlib import Path

import optuna
import pytest

from nasflow.config.search import OptunaConfig
from nasflow.space.space import Space
from nasflow.strategy.make import make_strategy
from nasflow.testing.strategy import ACCURACY, contract_program, finished


def test_optuna_says_nothing_and_is_as_loud_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would warn about conditional choices; a notebook may use Optuna, too."""
    said: list[str] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: said.append(record.getMessage()))
    monkeypatch.setattr(logging.getLogger("optuna"), "handlers", [handler])
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(logging.INFO)
    try:
        config = OptunaConfig(kind="qmc")
        strategy = make_strategy(config, Space(contract_program), [ACCURACY], 0, Path())
        for round in range(3):
            asked = strategy.ask(4)
            strategy.tell([finished(4 * round + i, round, one) for i, one in enumerate(asked)])
        assert said == []
        optuna.create_study()
        assert len(said) == 1
    finally:
        optuna.logging.set_verbosity(before)
