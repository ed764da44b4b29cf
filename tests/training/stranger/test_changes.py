"""What hooks and callbacks change on the way counts for merged members as for those alone."""

from pathlib import Path
from typing import Any

import pytest

from nasflow.job.events import Planned
from nasflow.training.unit.reasons import CHANGES, SETTINGS, STAYS_TRAINING, STRIDES, UNREACHED
from tests.training.fused_jobs import fused_and_apart, fused_members, interrupted_as_whole
from tests.training.jobs import evaluator, evictions, make_job, sample

pytestmark = pytest.mark.long

MODULES = Path(__file__).with_name("modules.py")
DROPPING, NORMED = f"{MODULES}:dropping", f"{MODULES}:normed"
MASKED, COUNTED, TEMPERED = f"{MODULES}:masked", f"{MODULES}:counted", f"{MODULES}:tempered"
READY_MADE = {"optimizer": {"name": "adam", "lr": {"float": [0.01, 0.1]}}}
FAILED = "a unit that it was in has failed"
LEAVE = {
    "dropout": (DROPPING, SETTINGS),
    "mode": (NORMED, SETTINGS),
    "momentum": (NORMED, SETTINGS),
    "layer": (DROPPING, SETTINGS),
    "parameter": (DROPPING, SETTINGS),
    "sampled": (DROPPING, SETTINGS),
    "frozen": (DROPPING, CHANGES),
    "mask": (MASKED, SETTINGS),
    "scale": (COUNTED, SETTINGS),
    "temperature": (TEMPERED, SETTINGS),
}
STAY = {
    **dict.fromkeys(("rate", "weights", "clipped", "restarted", "optimizer"), DROPPING),
    "counted": COUNTED,
}
OF_OBJECTS = ("mask", "scale", "temperature", "counted")


def own(name: str, **values: Any) -> dict[str, Any]:
    """A LightningModule of `modules.py`."""
    params = {"lr": {"float": [0.01, 0.1]}, **values}
    return {"kind": "lightning", "module": {"target": f"{MODULES}:{name}", "params": params}}


def changing(how: str, kind: dict[str, Any]) -> Any:
    callback = {"target": f"{MODULES}:Changes", "params": {"how": how}}
    return evaluator(**kind, callbacks=[callback], precision="64-true", epochs=3)


@pytest.mark.parametrize("how, why", [("gradients as rows", STRIDES), ("weights as rows", FAILED)])
def test_hooks_that_view_the_weights_of_convolutions(how: str, why: str, tmp_path: Path) -> None:
    events = fused_and_apart(f"{MODULES}:convolving", changing(how, own("Plain")), tmp_path, 3, all_fused=False)
    assert not evictions(events)
    assert fused_members(events) == {0, 1, 2}
    last = [event for event in events if isinstance(event, Planned)][-1]
    assert set(last.alone.values()) == {why}


KINDS = {"ready-made": READY_MADE, "lightning": own("Plain")}


@pytest.mark.parametrize(
    "how, kind",
    [(how, kind) for how in (*LEAVE, *STAY) for kind in KINDS if kind == "lightning" or how not in OF_OBJECTS],
)
def test_merged_is_solo(how: str, kind: str, tmp_path: Path) -> None:
    """Members that change what was merged leave their unit, and say why; others stay."""
    space, why = LEAVE[how] if how in LEAVE else (STAY[how], None)
    events = fused_and_apart(space, changing(how, KINDS[kind]), tmp_path, 3, all_fused=False)
    assert not evictions(events)
    assert fused_members(events) == {0, 1, 2}, "they begin together"
    alone = [event.alone for event in events if isinstance(event, Planned)][-1]
    assert set(alone.values()) == ({why} if why else set())


def test_what_a_hook_keeps_is_no_setting(tmp_path: Path) -> None:
    config = evaluator(**own("Plain"), precision="64-true")
    events = fused_and_apart(f"{MODULES}:recorded", config, tmp_path, 3)
    assert fused_members(events) == {0, 1, 2}
    assert not [event.alone for event in events if isinstance(event, Planned)][-1]


def test_an_adapter_that_is_merged_in_evaluation_mode(tmp_path: Path) -> None:
    config = evaluator(**own("Trains"), precision="64-true")
    assert not evictions(fused_and_apart(f"{MODULES}:adapted", config, tmp_path, 3, all_fused=False))


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_that_stays_in_training_mode(kind: str, tmp_path: Path) -> None:
    config = evaluator(**KINDS[kind], precision="64-true")
    events = fused_and_apart(f"{MODULES}:monte_carlo", config, tmp_path, 3, all_fused=False)
    [planned] = [event for event in events if isinstance(event, Planned)]
    assert planned.alone == dict.fromkeys(range(3), STAYS_TRAINING)


def test_a_validation_step_that_draws(tmp_path: Path) -> None:
    config = evaluator(**own("Samples"), precision="64-true")
    assert not evictions(fused_and_apart(DROPPING, config, tmp_path, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_a_branch_without_a_gradient_in_some_steps(kind: str, tmp_path: Path) -> None:
    """A merged member would step its weights by zeros then, where one alone skips them."""
    optimizer = {} if kind == "lightning" else {"optimizer": {"name": "adamw", "lr": 0.05}}
    config = evaluator(**KINDS[kind] | optimizer, precision="64-true", epochs=3)
    events = fused_and_apart(f"{MODULES}:skipping", config, tmp_path, 3, all_fused=False, verify="never")
    assert fused_members(events) == {0, 1, 2}
    last = [event for event in events if isinstance(event, Planned)][-1]
    assert UNREACHED in last.alone.values()


@pytest.mark.parametrize("how", ["clipped", "sampled", "rate"])
def test_resumed(how: str, tmp_path: Path) -> None:
    config = changing(how, READY_MADE)
    interrupted_as_whole(make_job(DROPPING, config, sample(DROPPING, config, 3), fuse="always"), tmp_path)


@pytest.mark.parametrize("name", ["OneCycle", "Curriculum", "Tied", "Sharp"])
def test_modules_with_a_state_of_their_own(name: str, tmp_path: Path) -> None:
    """Also with an average of the weights, and accumulated gradients where the module does not step by itself."""
    recipe: dict[str, Any] = {"ema": {"decay": 0.8}}
    if name != "Sharp":
        recipe |= {"accumulate_grad_batches": 3, "gradient_clip_val": 0.5}
    config = evaluator(**own(name), **recipe, precision="64-true", epochs=3)
    events = fused_and_apart(DROPPING, config, tmp_path, 3, all_fused=name != "Sharp")
    assert not evictions(events)
    for fuse in ("always", "never"):
        spec = make_job(DROPPING, config, sample(DROPPING, config, 3), fuse=fuse)
        interrupted_as_whole(spec, tmp_path / fuse)
