"""`evaluator.precision: 16-mixed`: every member has its own loss scale."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.plugins import MixedPrecision
from torch.nn import functional as F

from nasflow.checkpoint.store import CheckpointStore
from nasflow.config.search import EvaluatorConfig
from nasflow.errors import ConfigError
from nasflow.job.spec import JobSpec, trial_dir
from nasflow.training.lightning_loop import make_trainer
from nasflow.training.member_maker import load_job_data, make_member
from tests.training.fused_jobs import fused_and_apart, fused_members, interrupted_as_whole
from tests.training.jobs import evaluator, evictions, make_job, outcome, train, weights

SPACES = "half_spaces.py"
HALF: dict[str, Any] = {"precision": "16-mixed", "epochs": 3, "data": {"target": f"{SPACES}:blobs"}}
ROUNDING = 0.05  # of sixteen bits, in weights after some steps
MEMBERS = [{"width": 8, "gain": 1}, {"width": 12, "gain": 1024}, {"width": 8, "gain": 64}, {"width": 12, "gain": 1}]


def lightning(name: str = "Plain", file: str = "lightning_modules.py", **values: Any) -> EvaluatorConfig:
    module = {"target": f"{file}:{name}", "params": {"lr": 0.01}}
    return evaluator(**{**HALF, "kind": "lightning", "module": module, **values})


READY_MADE = evaluator(
    **HALF,
    optimizer={"name": "adamw", "lr": 0.01},
    schedule={"name": "cosine", "interval": "step"},
    gradient_clip_val=0.5,
    ema={"decay": 0.8},
)


def scales(root: Path, members: int = len(MEMBERS)) -> list[float]:
    """The members' loss scales, as their checkpoints have them."""
    states = [CheckpointStore(trial_dir(root, member)).load_newest() for member in range(members)]
    return [state["fitting"]["loss_scale"]["scale"] for state in states if state is not None]


def plainly(spec: JobSpec, trial: int, make: Any, accumulated: int = 1, clip: float | None = None) -> Any:
    """A trial's model and loss scale after a loop of plain PyTorch."""
    data = load_job_data(spec.data, spec.base_dir, spec.data_seed)
    member = make_member(spec, spec.members[trial], list)
    model: Any = member.module.model
    optimizer, scaler = make(model.parameters()), torch.amp.GradScaler("cpu")
    for _ in range(int(spec.evaluator.epochs)):  # type: ignore[arg-type]
        model.train()
        for index, (x, y) in enumerate(data.train):
            if index % accumulated == 0:
                optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss / accumulated).backward()
            if (index + 1) % accumulated == 0:
                scaler.unscale_(optimizer)
                if clip is not None:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                scaler.step(optimizer)
                scaler.update()
    return model, scaler.get_scale()


@pytest.mark.parametrize("space", ["net", "with_full_layer"])
@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("fuse", ["never", "always"])
def test_as_plain_pytorch(space: str, accumulated: int, fuse: Any, tmp_path: Path) -> None:
    config = lightning(gradient_clip_val=0.3, accumulate_grad_batches=accumulated)
    members = [{"width": 8, "gain": gain} for gain in (1, 1024)]
    members = [{k: v for k, v in m.items() if space == "net" or k == "gain"} for m in members]
    spec = make_job(f"{SPACES}:{space}", config, members, fuse=fuse)
    events = train(spec, tmp_path)
    assert fused_members(events) == ({0, 1} if fuse == "always" else set())
    rounding = 0.0 if fuse == "never" else ROUNDING
    for trial in range(2):
        model, scale = plainly(
            spec, trial, lambda ps: torch.optim.SGD(ps, 0.01, momentum=0.9), accumulated, config.gradient_clip_val
        )
        for name, tensor in weights(tmp_path, trial).items():
            wanted = model.state_dict()[name.removeprefix("model.")]
            torch.testing.assert_close(tensor, wanted, rtol=rounding, atol=rounding)
        assert scales(tmp_path, 2)[trial] == scale
    assert scale < 65536, "steps were skipped"


@pytest.mark.parametrize("space", ["net", "images"])
@pytest.mark.parametrize("config", [READY_MADE, lightning()], ids=["ready-made", "lightning"])
def test_fused_and_apart(config: EvaluatorConfig, space: str, tmp_path: Path) -> None:
    """The same steps are skipped: counters of optimizers are compared, too."""
    if space == "images":
        config = config.model_copy(update={"data": evaluator(data={"target": "spaces.py:images"}).data})
    fused_and_apart(f"{SPACES}:{space}", config, tmp_path, dict(enumerate(MEMBERS)), tolerance=ROUNDING)
    found = scales(tmp_path / "fused")
    assert found == scales(tmp_path / "apart")
    assert found[0] == found[3] == 65536 > found[1]


@pytest.mark.parametrize("space", ["net", "images"])
@pytest.mark.parametrize("config", [READY_MADE, lightning()], ids=["ready-made", "lightning"])
def test_what_one_skips_changes_no_bit_of_the_others(config: EvaluatorConfig, space: str, tmp_path: Path) -> None:
    if space == "images":
        config = config.model_copy(update={"data": evaluator(data={"target": "spaces.py:images"}).data})
    found = {}
    for gain in (1024, 1):
        members = [{**member, "gain": gain if trial == 1 else 1} for trial, member in enumerate(MEMBERS)]
        root = tmp_path / str(gain)
        events = train(make_job(f"{SPACES}:{space}", config, members, fuse="always"), root)
        assert fused_members(events) == {0, 1, 2, 3}
        assert (scales(root)[1] == 65536) is (gain == 1)
        found[gain] = [outcome(events, root, trial) for trial in (0, 2, 3)]
    assert found[1024] == found[1]


@pytest.mark.parametrize("config", [READY_MADE, lightning()], ids=["ready-made", "lightning"])
def test_resumed_to_the_same_bits(config: EvaluatorConfig, tmp_path: Path) -> None:
    interrupted_as_whole(make_job(f"{SPACES}:net", config, MEMBERS, fuse="always"), tmp_path)


@pytest.mark.parametrize("fuse", ["never", "always"])
def test_hooks_see_what_lightning_shows_them(fuse: Any, tmp_path: Path) -> None:
    """Scaled losses and gradients, and gradients that are not scaled any more before the step."""
    config = lightning("Hooked", SPACES, gradient_clip_val=0.3)
    members = [{"width": 8, "gain": gain} for gain in (1, 1024)]
    spec = make_job(f"{SPACES}:net", config, members, fuse=fuse)
    events = train(spec, tmp_path)
    assert fused_members(events) == ({0, 1} if fuse == "always" else set())
    for trial, member in enumerate(spec.members):
        module = make_member(spec, member, list).module
        del module.log, module.log_dict
        data = load_job_data(spec.data, spec.base_dir, spec.data_seed)
        options = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
        half = MixedPrecision("16-mixed", "cpu")
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=3,
            plugins=[half],
            logger=False,
            num_sanity_val_steps=0,
            gradient_clip_val=0.3,
            **options,  # type: ignore[arg-type]
        )
        trainer.fit(module, data.train, data.validation)
        rounding = 0.0 if fuse == "never" else ROUNDING
        for name, tensor in weights(tmp_path, trial).items():
            torch.testing.assert_close(tensor, module.state_dict()[name], rtol=rounding, atol=rounding)
        assert half.scaler is not None
        assert scales(tmp_path, 2)[trial] == half.scaler.get_scale()


@pytest.mark.parametrize("fuse", ["never", "always"])
@pytest.mark.parametrize("config", [READY_MADE, lightning()], ids=["ready-made", "lightning"])
def test_gradients_that_are_never_finite_fail_their_trial(config: EvaluatorConfig, fuse: Any, tmp_path: Path) -> None:
    """It would train to its end, and learn nothing. The others have the bits that they have without it."""
    found = {}
    for bad in (True, False):
        members = [{"bad": False}, {"bad": bad}, {"bad": False}]
        spec = make_job(
            f"{SPACES}:infinite", config.model_copy(update={"epochs": 12}), members, fuse=fuse, verify="never"
        )
        events = train(spec, tmp_path / str(bad))
        assert evictions(events).keys() == ({1} if bad else set())
        if bad:
            assert "gradients are not finite, whatever the losses are scaled by" in evictions(events)[1].error
        found[bad] = [outcome(events, tmp_path / str(bad), trial) for trial in (0, 2)]
    assert found[True] == found[False]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Manual", r"evaluator\.precision: Manual optimizes manually, .* use bf16-mixed"),
        ("Several", r"evaluator\.precision: LBFGS calls its step several times, .*; use bf16-mixed"),
    ],
)
def test_who_makes_its_steps_itself_is_refused(name: str, said: str, tmp_path: Path) -> None:
    events = train(make_job(f"{SPACES}:net", lightning(name, SPACES), MEMBERS[:2]), tmp_path)
    assert evictions(events).keys() == {0, 1}
    for event in evictions(events).values():
        assert re.search(said, event.error)


def test_a_device_without_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(*_: Any, **__: Any) -> Any:
        raise RuntimeError("addmm is not implemented for 'Half'")

    monkeypatch.setattr(torch.Tensor, "__matmul__", unable)
    with pytest.raises(ConfigError, match=r"this CPU can't compute in half precision; use bf16-mixed"):
        make_trainer("16-mixed")
