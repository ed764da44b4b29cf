"""Each mistake in a module, its data or a recipe gets one clear sentence, merged or alone."""

from collections.abc import Iterator
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

from nasflow.config.search import DataConfig
from nasflow.errors import ConfigError, DataError
from nasflow.job.events import Event, Final
from nasflow.training.batches.loading_errors import why_not_loaded
from nasflow.training.training_job import TrainingJob
from tests.training.interrupted import interrupted
from tests.training.jobs import evaluator, evictions, make_job, train
from tests.training.stranger.data import sampled
from tests.training.stranger.test_changes import MODULES

DATA = f"{Path(__file__).with_name('data.py')}"
SHAPES = f"{Path(__file__).with_name('shapes.py')}"
MEMBERS = [{"classes": 3}, {"classes": 3}]


@pytest.fixture(autouse=True)
def no_workers() -> Iterator[None]:
    """End the workers of a loader that raised: the collector would wait five seconds for each of them."""
    yield
    for worker in active_children():
        worker.terminate()


def first_line(config: dict[str, Any], fuse: Any, root: Path) -> str:
    """What both members of a job fail with."""
    events = train(make_job("spaces.py:linear", evaluator(**config), MEMBERS, fuse=fuse), root)
    lines = {event.error.splitlines()[0] for event in evictions(events).values()}
    assert len(evictions(events)) == 2 and len(lines) == 1
    return lines.pop()


def module(name: str, how: str) -> dict[str, Any]:
    return {"kind": "lightning", "module": {"target": f"{MODULES}:{name}", "params": {"how": how}}}


def data(name: str, **params: Any) -> dict[str, Any]:
    return {"target": f"{DATA}:{name}", "params": params}


NUMBER = "it should return a tensor with one number (not its .item()), a dict with that under 'loss', or None to skip"
MODULE_MISTAKES = [
    ("Returns", "a float", f"training_step returned a float as its loss; {NUMBER}"),
    ("Returns", "a tuple", f"training_step returned a tuple as its loss; {NUMBER}"),
    ("Returns", "a float in a dict", f"training_step returned a float as its loss; {NUMBER}"),
    ("Returns", "of each sample", "a loss of the shape (16,); it should be one number, such as its mean"),
    ("Returns", "another name", "training_step returned a dict with 'train_loss'; put the loss under 'loss'"),
    ("Returns", "detached", "training loss has no gradient in epoch 1, step 0; compute it from outputs of layers"),
    ("Returns", "a count", "training loss has no gradient in epoch 1, step 0; compute it from outputs of layers"),
    (
        "Logs",
        "a vector",
        "self.log('seen', ...) was given a tensor of the shape (3,); log one number, such as its mean",
    ),
    ("Logs", "a text", "self.log('seen', ...) was given 'low', which is no number; log a number"),
    ("Logs", "nothing", "self.log('seen', ...) was given None, which is no number; log a number"),
    ("Logs", "a dict", "self.log('seen', ...) was given {'a': 1.0}, which is no number; log a number"),
    ("Scheduled", "by batch", "gave a schedule with 'interval' 'batch'; use 'epoch' or 'step'"),
    ("Scheduled", "misspelt", "gave a schedule with 'schedular'; put torch's scheduler under 'scheduler'"),
    ("Scheduled", "never", "gave a schedule with 'frequency' 0; use 1, 2, ..."),
    ("Scheduled", "a class", "configure_optimizers gave the class StepLR as a schedule; give one of torch's"),
]


@pytest.mark.filterwarnings("ignore:configure_optimizers gave the key 'schedular'")
@pytest.mark.parametrize("fuse", ["always", "never"])
@pytest.mark.parametrize(("name", "how", "said"), MODULE_MISTAKES, ids=[f"{n}-{h}" for n, h, _ in MODULE_MISTAKES])
def test_of_a_module(name: str, how: str, said: str, fuse: Any, tmp_path: Path) -> None:
    assert said in first_line(module(name, how), fuse, tmp_path)


def test_a_key_that_nothing_reads_is_warned_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="configure_optimizers gave the key 'lr_schedule', which is not read"):
        events = train(make_job("spaces.py:linear", evaluator(**module("Scheduled", "unread")), MEMBERS), tmp_path)
    assert not evictions(events)


TARGETS = "takes class numbers [B] of torch.int64, or a share of each class [B, C] of the outputs' type, as targets"
TOGETHER = "can't be put together in a batch"
BALANCED = {"class_weights": "balanced"}
UNUSABLE = [
    ("labelled", "float", {}, f"{TARGETS}; its loader gives (16,) of torch.float32"),
    ("labelled", "int8", {}, f"{TARGETS}; its loader gives (16,) of torch.int8"),
    ("labelled", "int32", {"mixup": {}}, f"{TARGETS}; its loader gives (16,) of torch.int32"),
    ("labelled", "one-hot", {}, "'accuracy' needs class numbers [B] as targets, and the validation data give (16, 3)"),
    ("labelled", "one-hot", {"mixup": {}}, "'accuracy' needs class numbers [B] as targets"),
    ("labelled", "from -1", {}, "its loader gives the class number -1; let the numbers of classes begin with 0"),
    ("labelled", "texts", {"kind": "regression"}, "'kind: regression' takes a tensor of numbers [B] or [B, T] as targ"),
    ("labelled", "complex", {"kind": "regression"}, "its loader gives (16,) of torch.complex"),
    ("labelled", "nan", {"kind": "regression"}, "its loader gives targets that are not finite (nan or inf)"),
    ("batched", "dicts", {}, "takes batches (inputs, targets), and its loader gives dicts with 'x', 'y'; let it give"),
    ("batched", "triples", {"mixup": {}}, "and its loader gives tuples of 3"),
    ("batched", "two inputs apart", {}, "and its loader gives tuples of 3"),
    ("batched", "inputs", {}, "and its loader gives lists of 1"),
    ("batched", "tensors", {}, "and its loader gives a Tensor (16, 6)"),
    ("batched", "texts", {}, f"{TARGETS}; its loader gives a list"),
    ("batched", "arrays", {}, f"{TARGETS}; its loader gives a ndarray"),
    (
        "sampled",
        "pictures",
        {},
        f"{TOGETHER} (default_collate: batch must contain tensors, numpy arrays, numbers, dicts",
    ),
    ("sampled", "sizes", {}, f"{TOGETHER} (stack expects each tensor to be equal size, but got ["),
    ("sampled", "lists", {}, f"{TOGETHER} (each element in list of batch should be of equal size)"),
    ("in_workers", "pictures", {}, f"{TOGETHER} (default_collate: batch must contain tensors, numpy arrays, numbers"),
    (
        "in_spawned_workers",
        "arrays",
        {},
        ":in_spawned_workers can't be sent to worker processes (Can't pickle <function",
    ),
    ("in_workers", "sizes", {}, f"{TOGETHER} (their tensors have unequal sizes)"),
]
DATA_MISTAKES = [
    ("labelled", "column", {}, f"{TARGETS}; its loader gives (16, 1) of torch.int64"),
    ("labelled", "masked", {}, f"{TARGETS}; its loader gives (16, 4) of torch.int64"),
    ("labelled", "one-hot of int", {}, f"{TARGETS}; its loader gives (16, 3) of torch.int64"),
    (
        "labelled",
        "shares of four",
        {"metrics": []},
        "its loader gives shares of 4 classes, and the model tells 3 apart: it gives (16, 3) for targets (16, 4)",
    ),
    ("batched", "inputs as arrays", {}, "linear(): argument 'input' (position 1) must be Tensor, not numpy.ndarray"),
    ("labelled", "from 1", {}, "evaluator.data: 3 is no class of the model, which has 3, numbered 0 to 2"),
    ("labelled", "one class", BALANCED, "there are 1, and the model tells 3 classes apart; give one for each class"),
    ("labelled", "no last class", BALANCED, "('balanced' gives as many as the training data have)"),
    ("labelled", "no second class", BALANCED, "has no training sample of class 1; write a weight for each class"),
    ("labelled", "float", BALANCED, "samples whose labels are not known"),
    ("labelled", "masked", BALANCED, "samples whose labels are not known"),
    ("batched", "two inputs", {"mixup": {}}, "evaluator.mixup: inputs of a tuple can't be mixed"),
]


@pytest.mark.parametrize("fuse", ["always", "never"])
@pytest.mark.parametrize(("name", "how", "values", "said"), DATA_MISTAKES)
def test_of_data(name: str, how: str, values: dict[str, Any], said: str, *, fuse: Any, tmp_path: Path) -> None:
    assert said in first_line({"data": data(name, how=how), **values}, fuse, tmp_path)


@pytest.mark.parametrize("fuse", ["always", "never"])
@pytest.mark.parametrize(("name", "how", "values", "said"), UNUSABLE)
def test_of_data_that_no_candidate_can_use(
    name: str, how: str, values: dict[str, Any], said: str, *, fuse: Any, tmp_path: Path
) -> None:
    """The job is refused in one sentence, and no trial is to blame."""
    spec = make_job("spaces.py:linear", evaluator(data=data(name, how=how), **values), MEMBERS, fuse=fuse)
    events: list[Event] = []
    with pytest.raises(DataError) as refused:
        TrainingJob(spec, tmp_path, events.append).run()
    assert str(refused.value).startswith("evaluator.") and said in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    assert not evictions(events)


def test_lazy_layers_are_not_to_blame_for_data(tmp_path: Path) -> None:
    config = evaluator(data=data("labelled", how="float"))
    with pytest.raises(DataError, match=r"its loader gives \(16,\) of torch.float32"):
        train(make_job(f"{SHAPES}:unsized", config, [{"width": 4}, {"width": 5}], fuse="always"), tmp_path)


def test_a_batch_of_a_later_epoch_does_not_end_the_search(tmp_path: Path) -> None:
    """A job that goes on sees it first."""
    spec = make_job("spaces.py:linear", evaluator(data=data("worse"), epochs=3), MEMBERS, fuse="always")
    interrupted(spec, tmp_path, trial=1, epoch=1)
    found = evictions(train(spec, tmp_path))
    assert [(event.epoch, "-1 is no class of the model" in event.error) for event in found.values()] == [(2, True)] * 2


def test_what_keeps_samples_apart_is_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = make_job("spaces.py:linear", evaluator(data=data("sampled", how="pictures")), MEMBERS)
    with pytest.raises(DataError):
        train(spec, tmp_path)
    assert "in default_collate" in caplog.text and "default_collate: batch must contain" in caplog.text


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        (data("later", which="train"), RuntimeError, "stack expects each tensor"),
        (data("later", which="validation"), RuntimeError, "stack expects each tensor"),
        (data("sampled", how="own stack"), RuntimeError, "stack expects each tensor"),
        (data("sampled", how="own pickle"), TypeError, "no pickle of this"),
    ],
)
def test_errors_that_other_samples_or_a_retry_may_not_have(
    given: dict[str, Any], kind: type[Exception], said: str, tmp_path: Path
) -> None:
    """They end the job, not the search."""
    with pytest.raises(kind, match=said):
        train(make_job("spaces.py:linear", evaluator(data=given), MEMBERS, fuse="always"), tmp_path)


@pytest.mark.parametrize("how", ["own stack", "own pickle"])
def test_errors_of_a_data_set_in_a_worker_process(how: str) -> None:
    with pytest.raises((RuntimeError, TypeError), match="in DataLoader worker process 0") as raised:
        next(iter(sampled(how, workers=1)[0]))
    assert why_not_loaded("data.py:sampled", raised.value) is None


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_targets_that_a_loss_by_import_path_takes(tmp_path: Path) -> None:
    own = {"kind": "regression", "loss": {"target": f"{DATA}:distance"}, "metrics": []}
    config = evaluator(data=data("labelled", how="complex"), **own)
    events = train(make_job("spaces.py:linear", config, MEMBERS), tmp_path)
    assert not evictions(events) and len([event for event in events if isinstance(event, Final)]) == 2


def test_of_data_that_are_searched(tmp_path: Path) -> None:
    """Other trials may have other data, so each gets the message for itself."""
    searched = {"target": f"{DATA}:labelled", "params": {"how": {"pick": ["float", "uint8"]}}}
    spec = make_job("spaces.py:linear", evaluator(data=searched), [{**m, "data.params.how": "float"} for m in MEMBERS])
    spec = spec.model_copy(update={"data": DataConfig(target=f"{DATA}:labelled", params={"how": "float"})})
    said = {event.error.splitlines()[0] for event in evictions(train(spec, tmp_path)).values()}
    assert len(said) == 1 and f"{TARGETS}; its loader gives (16,) of torch.float32" in said.pop()


def test_a_fold_without_a_rare_class_is_named(tmp_path: Path) -> None:
    config = {"data": data("rare", of=1), "folds": 3, **BALANCED}
    said = first_line(config, "always", tmp_path)
    assert said.startswith("fold ") and "evaluator.class_weights: there are 2, and the model tells 3" in said


AGAIN = "give loaders that can be iterated again in each epoch: a DataLoader or a list, not a generator"
EMPTY = "let its loader have samples, and without drop_last if they fill no batch"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (data("exhausted", which="train"), f"gives no batch to train on in epoch 2; {AGAIN}"),
        (data("exhausted", which="validation"), f"gives no batch to validate on in epoch 2; {AGAIN}"),
        (data("none_left", which="train"), f"gives no batch to train on; {EMPTY}"),
        (data("none_left", which="train", how="collated"), f"gives no batch to train on; {EMPTY}"),
        (data("none_left", which="train", how="workers"), f"gives no batch to train on; {EMPTY}"),
        (data("none_left", which="validation"), f"gives no batch to validate on; {EMPTY}"),
        (data("several"), "gives several loaders at once; it should give one for each stage"),
    ],
)
def test_data_without_batches(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    """They are no trial's fault, and no epoch counts that trained on nothing."""
    with pytest.raises(ConfigError) as refused:
        train(make_job("spaces.py:linear", evaluator(data=given, epochs=3), MEMBERS, fuse="always"), tmp_path)
    assert str(refused.value).startswith("evaluator.data: ") and said in str(refused.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_of_arrays_and_lambdas_train(workers: int, tmp_path: Path) -> None:
    given = data("sampled", how="arrays", workers=workers)
    events = train(make_job("spaces.py:linear", evaluator(data=given), MEMBERS, fuse="always"), tmp_path)
    assert not evictions(events) and len([event for event in events if isinstance(event, Final)]) == 2


def test_one_class_trains(tmp_path: Path) -> None:
    metrics = ["accuracy", "f1", "precision", "recall", "auroc"]
    config = evaluator(data=data("labelled", how="one class"), metrics=metrics)
    events = train(make_job("spaces.py:linear", config, MEMBERS, fuse="always"), tmp_path)
    assert not evictions(events) and len([event for event in events if isinstance(event, Final)]) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_streams_and_odd_batches_train(workers: int, tmp_path: Path) -> None:
    given = data("streamed", workers=workers) if workers else data("of_many_lengths")
    events = train(make_job("spaces.py:linear", evaluator(data=given), MEMBERS, fuse="always"), tmp_path)
    assert not evictions(events) and len([event for event in events if isinstance(event, Final)]) == 2
