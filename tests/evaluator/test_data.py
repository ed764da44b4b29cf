"""Data: what is shipped, and every form in which a user may bring their own."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from nasflow.config.search import DataConfig, SearchConfig
from nasflow.errors import ConfigError
from nasflow.evaluator.check import check_search
from nasflow.evaluator.loading.data_source import Data, fingerprint, load_data, load_test_data
from nasflow.evaluator.loading.loaders import TensorLoader

HERE = Path(__file__).parent


def load(target: str, **params: Any) -> Data:
    return load_data(DataConfig(target=target, params=params), HERE)


def joined(loader: Any) -> tuple[torch.Tensor, torch.Tensor]:
    xs, ys = zip(*loader, strict=True)
    return torch.cat(xs), torch.cat(ys)


@pytest.mark.parametrize(
    ("name", "rows", "shape", "classes"),
    [
        ("Digits", 1797, (1, 8, 8), 10),
        ("DigitsRows", 1797, (64,), 10),
        ("Wine", 178, (13,), 3),
        ("BreastCancer", 569, (30,), 2),
        ("Diabetes", 442, (10,), None),
    ],
)
def test_shipped(name: str, rows: int, shape: tuple[int, ...], classes: int | None) -> None:
    data = load(f"nasflow.evaluator.data:{name}", batch_size=50, val_fraction=0.25)
    (x, y), (x_val, y_val) = joined(data.train), joined(data.validation)
    assert len(x) + len(x_val) == rows
    assert len(x_val) == pytest.approx(rows / 4, abs=1)
    assert x.shape[1:] == x_val.shape[1:] == shape
    assert x.dtype == x_val.dtype == torch.float32
    everything = torch.cat([x, x_val])
    if name.startswith("Digits"):
        assert (everything.min(), everything.max()) == (0, 1)
    else:
        assert everything.mean(0).abs().max() < 1e-5
        assert (everything.std(0) - 1).abs().max() < 1e-5
    if classes is None:
        assert y.dtype == torch.float32
        assert y.ndim == 1
        assert torch.cat([y, y_val]).std().item() == pytest.approx(1, abs=1e-5)
    else:
        assert y.dtype == torch.int64
        shares = [torch.bincount(part, minlength=classes) / len(part) for part in (y, y_val)]
        assert shares[0].shape == (classes,)
        assert (shares[0] - shares[1]).abs().max() < 0.02, "each class has the same share in both parts"


def test_the_split_is_fixed_and_the_order_is_not() -> None:
    torch.manual_seed(1)
    first, second = (joined(load("nasflow.evaluator.data:Wine").validation)[0] for _ in range(2))
    assert torch.equal(first, second)
    train = load("nasflow.evaluator.data:Wine").train
    orders = [joined(train)[0] for _ in range(2)]
    assert not torch.equal(*orders)
    assert torch.equal(orders[0].sum(0).round(decimals=3), orders[1].sum(0).round(decimals=3))


def test_tensor_loader() -> None:
    x, y = torch.arange(10), torch.arange(10) * 2
    loader = TensorLoader((x, y), batch_size=4)
    assert [part.tolist() for part, _ in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(loader) == 3
    assert len(TensorLoader((x, y), batch_size=5)) == 2
    shuffled = TensorLoader((x, y), batch_size=4, shuffle=True)
    torch.manual_seed(3)
    first, second = joined(shuffled), joined(shuffled)
    assert sorted(first[0].tolist()) == x.tolist()
    assert torch.equal(first[1], first[0] * 2)
    assert not torch.equal(first[0], second[0])
    torch.manual_seed(3)
    assert torch.equal(joined(shuffled)[0], first[0])
    with pytest.raises(ValueError, match="batch_size is 0"):
        TensorLoader((x, y), batch_size=0)


@pytest.mark.parametrize(
    ("target", "params", "train", "validation", "module"),
    [
        ("pair", {"size": 12}, 3, 3, False),
        ("one_loader", {}, 2, None, False),
        ("Module", {"size": 16}, 4, 4, True),
        ("Module", {"validate": False}, 2, None, True),
        ("TrainModule", {}, 2, None, True),
        ("from_datasets", {}, 2, 2, True),
        ("listed", {}, 2, 2, False),
    ],
)
def test_what_users_bring(
    target: str, params: dict[str, Any], train: int, validation: int | None, module: bool
) -> None:
    data = load(f"targets.py:{target}", **params)
    assert len(list(data.train)) == train
    assert (None if data.validation is None else len(list(data.validation))) == validation
    assert (data.module is not None) is module
    if target == "Module":
        assert data.module.calls == ["prepare_data", "setup fit"]


def test_a_data_module_has_a_trainer_wherever_it_may_ask_for_it() -> None:
    data = load("targets.py:AsksTrainer")
    test = load_test_data(DataConfig(target="targets.py:AsksTrainer"), HERE)
    assert [len(x) for x, _ in data.train] == [len(x) for x, _ in test.validation] == [8]
    with pytest.raises(ConfigError, match=r"asks for trainer\.max_epochs"):
        _ = data.module.trainer.max_epochs
    sent = pickle.loads(pickle.dumps(data.train.collate_fn))  # as to worker processes that are not forked
    assert sent.__self__.size == 8


SEVERAL = r"evaluator\.data: targets\.py:.* gives several loaders at once; it should give one for each stage"


@pytest.mark.parametrize(
    ("target", "params", "said"),
    [
        ("targets.py:three", {}, "evaluator.data: targets.py:three gave a tuple; it should give a LightningDataModule"),
        ("targets.py:number", {}, "evaluator.data: targets.py:number gave a int; it should give a LightningDataModule"),
        ("targets.py:HERE", {}, "target 'targets.py:HERE': 'targets.py' has no 'HERE'"),
        ("targets.py:pair", {"sise": 3}, "targets.py:pair does not take these params: got an unexpected .* 'sise'"),
        ("targets.py:SeveralLoaders", {}, SEVERAL),
        ("targets.py:SeveralLoaders", {"how": "dict"}, SEVERAL),
        ("targets.py:SeveralLoaders", {"how": "combined"}, SEVERAL),
        ("targets.py:from_datasets", {"one": False}, SEVERAL),
        ("targets.py:named", {}, SEVERAL),
        ("targets.py:combined", {}, SEVERAL),
        ("nasflow.evaluator.data:F_OK", {}, "has no 'F_OK'"),
        ("nasflow.nowhere:Data", {}, "there is no module 'nasflow.nowhere'"),
        ("nasflow.evaluator.data:__name__", {}, "nasflow.evaluator.data:__name__ is not callable"),
    ],
)
def test_refused(target: str, params: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        load(target, **params)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("target", ["SeveralLoaders", "named", "pair_in_a_list"])
def test_one_loader_is_scored_on(target: str) -> None:
    with pytest.raises(ConfigError, match=r"^evaluator\.test_data: .* several loaders at once; it should give one"):
        load_test_data(DataConfig(target=f"targets.py:{target}"), HERE)


def test_an_error_within_users_code_is_not_taken_for_wrong_params() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        load("targets.py:broken")


def test_fingerprint() -> None:
    def name(target: str, **params: Any) -> str:
        return fingerprint(DataConfig(target=target, params=params))

    assert name("a:b", x=1, y=[2, "c"]) == name("a:b", y=[2, "c"], x=1)
    others = [name("a:b"), name("a:c"), name("a:b", x=1), name("a:b", x=1.0), name("a:b", x="1"), name("a:b", x=[1])]
    assert len(set(others)) == len(others)


def search(params: dict[str, Any], **evaluator: Any) -> SearchConfig:
    data = {"target": "nasflow.evaluator.data:Digits", "params": params}
    return SearchConfig.model_validate(
        {
            "name": "small",
            "space": {"target": "nasflow.space.ready:mlp", "params": {"in_features": 64, "classes": 10}},
            "evaluator": {"kind": "classification", "data": data, **evaluator},
        }
    )


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"batch_size": 0}, "batch_size: it should be a whole number from 1 on, not 0"),
        ({"batch_size": -3}, "batch_size: it should be a whole number from 1 on, not -3"),
        ({"batch_size": "a few"}, "batch_size: it should be a whole number from 1 on, not 'a few'"),
        ({"batch_size": True}, "batch_size: it should be a whole number from 1 on, not True"),
        ({"batch_size": 1.5}, "batch_size: it should be a whole number from 1 on, not 1.5"),
        ({"batch_size": {"int": ["a", "b"]}}, "batch_size: it should be a whole number"),
        ({"batch_size": None}, "batch_size: it should be a whole number from 1 on, not None"),
        ({"val_fraction": "most"}, "val_fraction: it should be a number between 0 and 1, not 'most'"),
        ({"val_fraction": 1}, "val_fraction: it should be a number between 0 and 1, not 1"),
        ({"val_fraction": -0.1}, "val_fraction: it should be a number between 0 and 1, not -0.1"),
        ({"val_fraction": 1e-6}, "val_fraction: "),
        ({"val_fraction": 0.999999}, "val_fraction: "),
        ({"test_fraction": 1.5}, "test_fraction: it should be 0, or a number between 0 and 1, not 1.5"),
        ({"test_fraction": True}, "test_fraction: it should be 0, or a number between 0 and 1, not True"),
        ({"test_fraction": 0.001}, "test_fraction: "),
        ({"part": "train"}, "part: it should be fit or test, not 'train'"),
        ({"part": "test"}, "test_fraction: with part: test, it should be what evaluator.data has"),
        ({"int": [1, 5]}, "Digits does not take these params: got an unexpected keyword argument 'int'"),
        ({"pick": [1, 5]}, "Digits does not take these params: got an unexpected keyword argument 'pick'"),
    ],
    ids=str,
)
def test_params_that_shipped_data_can_t_take(params: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_search(search(params))
    assert str(refused.value).startswith("evaluator.data")
    assert reason in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("optimizer", [{"lr": -1}, {"betas": [0.9, 1]}, {"weight_decay": -0.5}], ids=str)
def test_values_that_an_optimizer_can_t_take(optimizer: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^evaluator\.optimizer: Invalid "):
        check_search(search({}, optimizer=optimizer))


@pytest.mark.parametrize("name", ["Digits", "Wine", "Diabetes"])
def test_what_is_put_aside_is_in_no_other_part(name: str) -> None:
    target = f"nasflow.evaluator.data:{name}"
    fit = load(target, test_fraction=0.2)
    test = load_test_data(DataConfig(target=target, params={"test_fraction": 0.2, "part": "test"}), Path()).validation
    parts = [fit.train, fit.validation, test]
    rows = [{(tuple(x.flatten().tolist()), float(y)) for x, y in zip(*part.tensors, strict=True)} for part in parts]
    whole = load(target)
    assert sum(map(len, rows)) == len(set.union(*rows))
    assert sum(len(part.tensors[0]) for part in parts) == sum(
        len(p.tensors[0]) for p in (whole.train, whole.validation)
    )
    assert len(test.tensors[0]) == pytest.approx(0.2 * sum(len(part.tensors[0]) for part in parts), abs=1)
