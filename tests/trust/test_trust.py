"""Random models train merged as they do alone; and the suite sees what it should."""

from collections.abc import Iterator

import pytest
import torch

from nasflow.merge.kernels.linear import BatchedLinear
from nasflow.merge.tape.tape import Spot, Tape
from nasflow.merge.values.layout import Layout
from tests.trust.case import draw_case, run
from tests.trust.command import campaign, summary
from tests.trust.costs import RandomCosts
from tests.trust.model import build
from tests.trust.shrink import as_code, judge, shrink

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
    real = BatchedLinear._record_bias

    def twice(self: BatchedLinear, tape: Tape, y: Spot) -> None:
        real(self, tape, y)
        if self.bias_NO is not None and self.bias_NO.requires_grad:
            tape.do(tape.parameter_grads[self.bias_NO].mul_, 2)

    cases = (draw_case(SEED, number) for number in range(200))
    case = next(one for one in cases if not one.job and not one.single and "whole on a tape" in run(one).paths.met)
    assert not run(case).differences
    monkeypatch.setattr(BatchedLinear, "_record_bias", twice)
    verdict = run(case)
    assert any("bias" in text for text in verdict.differences)
    smaller, found = shrink(case, judge(case), seconds=4.0)
    assert sum(len(p.steps) for p in smaller.programs) <= sum(len(p.steps) for p in case.programs)
    code = as_code(smaller, found)
    assert "bias" in code and "class Model0(nn.Module)" in code
    for program in smaller.programs:
        assert isinstance(build(program.source), torch.nn.Module)


def test_costs_follow_from_their_seed() -> None:
    one, same, other = (RandomCosts(torch.device("cpu"), seed, 1.0) for seed in (1, 1, 2))
    costs = [model.gather(Layout.STACK, 5) for model in (one, same, other)]
    assert costs[0] == costs[1] != costs[2]


def test_random_models_train_merged_as_alone() -> None:
    report = campaign(SEED, 0, CASES, stop_after=0)
    assert report.cases == CASES and report.met["unit"] > CASES // 2
    assert not report.bad, summary(report)
