"""LightningModules of other packages are fused end as by themselves: BoringModel, DemoModel and LightningTransformer,
which pytorch-lightning ships as demos. Only the layer that is searched is put into them."""

from pathlib import Path
from typing import Any

import pytest

from nasflow.training.dry_run import rehearse
from tests.training.fused_jobs import fused_and_apart
from tests.training.jobs import evaluator, make_job, sample

DEMOS = {
    "Boring": ("rows", "numbers", {}, ["layer"]),
    "Demo": ("rows", "numbers", {"lr": {"float": [1e-3, 1e-2]}}, ["l1"]),
    "Words": ("transformers", "texts", {}, ["model.embedding", "model.decoder"]),
}


@pytest.mark.parametrize("name", DEMOS)
def test_a_demo_of_lightning(name: str, tmp_path: Path) -> None:
    space, loader, params, parts = DEMOS[name]
    module, data = {"target": f"demo_modules.py:{name}", "params": params}, {"target": f"demo_modules.py:{loader}"}
    config: Any = evaluator(kind="lightning", module=module, data=data, precision="64-true", epochs=2)
    target = f"demo_modules.py:{space}"
    fused_and_apart(target, config, tmp_path, 4)
    planned = rehearse(make_job(target, config, sample(target, config, 4), fuse="always"))
    assert {unit.part for unit in planned.units} == set(parts)
