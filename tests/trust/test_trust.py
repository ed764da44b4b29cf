"""Random models train merged as they do alone; and the suite sees what it should."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from trust_case import draw_case, run
from trust_command import campaign, summary
from trust_costs import RandomCosts
from trust_model import build
from trust_shrink import as_code, judge, shrink

from nasflow.merge.tape import Tape

SEED, CASES = 7, 60


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_what_is_drawn_follows_from_the_seed() -> None:
    assert [draw_case(SEED, n) for n in range(5)] == [draw_case(SEED, n) for n in range(5)]
    assert draw_case(SEED, 0) != draw_case(SEED + 1, 0)


def test_a_wrong_gradient_is_seen_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tape whose bias gradients are doubled."""
    real = Tape.parameter_grad

    def twice(self: Tape, parameter: torch.Tensor) -> torch.Tensor:
        grad = real(self, parameter)
        if parameter.ndim == 2:
            self._program.append(lambda: grad.mul_(2))
        return grad

    cases = (draw_case(SEED, number) for number in range(200))
    case = next(one for one in cases if not one.job and not one.single and "whole on a tape" in run(one).paths.met)
    assert not run(case).differences
    monkeypatch.setattr(Tape, "parameter_grad", twice)
    verdict = run(case)
    monkeypatch.setattr(Tape, "parameter_grad", twice)
    assert any("bias" in text for text in verdict.differences)
    smaller, found = shrink(case, judge(case), seconds=10.0)
    assert sum(len(p.steps) for p in smaller.programs) <= sum(len(p.steps) for p in case.programs)
    code = as_code(smaller, found)
    assert "bias" in code and "class Model0(nn.Module)" in code
    for program in smaller.programs:
        assert isinstance(build(program.source), torch.nn.Module)


def test_random_costs_choose_every_kernel_and_stay() -> None:
    one, same, other = (RandomCosts(torch.device("cpu"), seed, 1.0) for seed in (1, 1, 2))
    layout: Any = next(iter(__import__("nasflow.merge.layout", fromlist=["Layout"]).Layout))
    assert one.gather(layout, 5) == same.gather(layout, 5) != other.gather(layout, 5)


def test_random_models_train_merged_as_alone() -> None:
    report = campaign(SEED, 0, CASES, stop_after=0)
    assert report.cases == CASES and report.met["unit"] > CASES // 2
    assert not report.bad, summary(report)
