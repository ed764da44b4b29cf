"""Modes of many modules: as Lightning and the modules' own methods would have them."""

from typing import Any

import torch
from torch import nn

from nasflow.training.member.trainer.modes import EvaluationModes


class Stays(nn.Module):
    """Keeps its normalization in evaluation mode, and counts how often it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.told = 0

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.norm.eval()
        self.told += 1
        return self


def modes(*models: nn.Module) -> list[bool]:
    return [module.training for model in models for module in model.modules()]


def test_each_module_gets_its_own_mode_back() -> None:
    frozen = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2)))
    frozen[1].eval()
    own = nn.Sequential(Stays(), nn.Dropout()).train()
    scripted = torch.jit.script(nn.Sequential(nn.Dropout(), nn.Linear(2, 2)))
    models = [frozen, own, scripted, nn.Linear(2, 2).eval()]
    before, told = modes(*models), own[0].told
    assert len(set(before)) == 2
    evaluation = EvaluationModes()
    evaluation.enter(models)
    assert not any(modes(*models))
    assert own[0].told == told + 1, "its own method was called"
    x = torch.randn(300, 2)
    assert torch.equal(scripted(x), scripted(x)), "its dropout is off"
    models.pop()  # one that leaves meanwhile
    evaluation.leave()
    assert modes(*models) == before[:-1]
    assert not torch.equal(scripted(x), scripted(x))
