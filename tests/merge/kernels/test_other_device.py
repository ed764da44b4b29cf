"""Kernels compute where their members are: torch's `meta` device refuses tensors of the CPU, as a GPU does."""

import pytest
import torch

from nasflow.merge.planning.planner import Planner
from nasflow.merge.run import merged_model
from nasflow.merge.run.merged_model import MergedModel
from nasflow.merge.trace.graph import trace
from nasflow.merge.trace.shape_inference import Spec
from nasflow.training.member.rng import RngStream
from tests.merge.kernels.test_kernels import LAYERS
from tests.merge.merging import build

META = torch.device("meta")
TIED = {"tied", "words-tied"}
TRACED_WHERE_THEY_ARE = {"attribute", "buffer"}  # graphs that hold the buffers which the model had when it was traced
CPU_ONLY = {"BatchedDropout": "Loop"}  # what runs in its place elsewhere


@pytest.mark.parametrize("taped", [True, False], ids=["tape", "autograd"])
@pytest.mark.parametrize("name", sorted(LAYERS.keys() - TRACED_WHERE_THEY_ARE))
def test_forward_and_backward(name: str, taped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_model, "_LEAST", 1)
    kernel, make, inputs = LAYERS[name]
    models = [build(make, seed) for seed in range(3)]
    graphs = [trace(model, Spec.batch(inputs(6))) for model in models]
    torch.__future__.set_swap_module_params_on_conversion(name in TIED)  # else layers would lose their common parameter
    for model in models:
        model.to(META)
    torch.__future__.set_swap_module_params_on_conversion(False)
    plan = Planner(device=META).plan(graphs)
    assert CPU_ONLY.get(kernel, kernel) in {batch.kernel.__name__ for batch in plan.batches if batch.kernel}
    streams = [RngStream(seed) for seed in range(3)]
    merged = MergedModel(plan, streams, [stream.generator for stream in streams], lambda member, run: run())
    outputs = merged(inputs(6).to(META), True, taped)
    assert outputs.device == META and outputs.shape[:2] == (3, 6)
    outputs.square().sum().backward()
    gradients = [parameter.grad for model in models for parameter in model.parameters()]
    gradients += [stack.tensor.grad for stack in merged.stacks]
    assert {gradient.device for gradient in gradients if gradient is not None} == {META}
