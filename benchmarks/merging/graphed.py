"""Sequential training with each member's whole step captured in a CUDA graph, so that a step is a single launch."""

import torch
from torch import nn

from benchmarks.merging.contestants import Contestant, Outcome
from benchmarks.merging.group import Group
from benchmarks.merging.plain import Batches, Manner, Step, Trial, adam, build, make_step, run_epochs

_WARM_UP = 3  # steps before a capture, as PyTorch's documentation recommends


class GraphedSequential(Contestant):
    """One member after the other in this process, on a CUDA device."""

    def __init__(self, name: str, group: Group, members: int | None, manner: Manner):
        super().__init__(name, group, members)
        self._manner = manner

    def run(self) -> Outcome:
        """See `Contestant.run`."""
        data = self.group.load()
        assert data.validation is not None
        trials = {member.trial: self.group.trial(member) for member in self.group.members}
        return Outcome({n: _train(trial, data.train, data.validation, self._manner) for n, trial in trials.items()})


def _train(trial: Trial, batches: Batches, validation: Batches, manner: Manner) -> float:
    model = build(trial, manner)
    optimizer = adam(model, trial, manner, capturable=True)
    step = GraphedStep(model, optimizer, make_step(model, optimizer, manner))
    return run_epochs(model, step, trial, batches, validation, manner=manner)


class GraphedStep:
    """A step that is captured on its first batch and replayed for that shape; other shapes run without a graph."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: Step):
        self._model = model
        self._optimizer = optimizer
        self._step = step
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, x: torch.Tensor, target: torch.Tensor) -> None:
        if self._graph is None:
            self._x, self._target = x.clone(), target.clone()
            self._graph = self._capture()
        if x.shape == self._x.shape:
            self._x.copy_(x)
            self._target.copy_(target)
            self._graph.replay()
        else:
            self._step(x, target)

    def _capture(self) -> torch.cuda.CUDAGraph:
        before = {name: tensor.clone() for name, tensor in self._model.state_dict().items()}
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UP):
                self._step(self._x, self._target)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(self._x, self._target)
        self._model.load_state_dict(before)
        for state in self._optimizer.state.values():  # all zeros before the first step
            for tensor in state.values():
                tensor.zero_()
        return graph
