"""NNI's search space of hyper-parameters: values of the evaluator that are searched, and picks of a `build(pick)`."""

import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nasflow.clean_text import one_line
from nasflow.config.from_nni.entries import Entries, plain
from nasflow.config.reading.recordable import MOST_CHARACTERS
from nasflow.config.reading.yaml_file import read_yaml
from nasflow.errors import ConfigError

_OPTIMIZER = {"lr": "lr", "learningrate": "lr", "weightdecay": "weight_decay"}
_DATA = {"batchsize": "batch_size"}
_DENSE = "write a list of values that lie as dense as you like: pick(label, options)"
_LINE = 60  # parts of a list that are written out
_LARGEST = 1e15
_MOST_STEPS = 1_000
_RANGES = {
    "uniform": "[low, high] with low < high",
    "loguniform": "[low, high] with 0 < low < high",
    "randint": "[low, high] with whole numbers, low < high",
    "quniform": f"[low, high, step] with low < high, a step above 0, and less than {_MOST_STEPS} steps",
}


@dataclass
class SearchSpace:
    """What became of a search space.

    Attributes:
        optimizer: searched values of `evaluator.optimizer`.
        data: searched params of `evaluator.data`.
        picks: lines of a function `build(pick)`.
    """

    optimizer: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    picks: list[str] = field(default_factory=list)


def search_space(config: Entries, folder: Path) -> SearchSpace:
    """Return the translated search space, which the config contains or names by a file in `folder`."""
    file_key, file = config.key("searchSpaceFile", "searchSpacePath"), config.text("searchSpaceFile", "searchSpacePath")
    key, values = config.key("searchSpace"), config.take("searchSpace")
    if file is not None:
        key = file_key
        try:
            values = _read(folder / file)
        except (ConfigError, ValueError) as error:
            reason = one_line(str(error).removeprefix(f"{folder / file}: "))
            config.notes.add(key, f"{reason}; mend the file, or translate it by hand, as docs/from-nni.md shows")
    found = SearchSpace()
    if isinstance(values, dict):
        for label, value in values.items():
            _parameter(found, str(label), value, Entries({}, f"{key}.{label}", config.notes))
    elif values is not None:
        config.notes.add(key, "should be a mapping of parameters; it is left out")
    return found


def _read(path: Path) -> Any:
    """Return the content of a file of JSON, which YAML does not allow to be indented by tabs, or of YAML.

    Raises:
        ConfigError: it is neither.
        ValueError: it is no path.
    """
    with suppress(OSError, ValueError, RecursionError), path.open("rb") as file:
        data = file.read(MOST_CHARACTERS + 1)
        if len(data) <= MOST_CHARACTERS:
            return json.loads(data)
    return read_yaml(path, old=True)


def _parameter(found: SearchSpace, label: str, value: Any, place: Entries) -> None:
    kind, given = (value.get("_type"), value.get("_value")) if isinstance(value, dict) else (None, None)
    if not isinstance(kind, str) or not isinstance(given, list) or not given:
        place.notes.add(place.path, "should have a _type and the list _value; it is left out")
        return
    searched, pick = _choice(label, given) if kind == "choice" else _range(kind, label, given)
    if pick is None:
        what = "an unknown _type" if searched is None else "nested choices: ask for them in an `if` of build(pick)"
        if kind in _RANGES:
            what = f"{kind}: its _value should be {_RANGES[kind]}; it is left out"
        dense = kind.lstrip("q") in ("normal", "lognormal") or kind == "qloguniform"
        place.notes.add(place.path, f"{kind}: {_DENSE}" if dense else what)
    elif searched is not None and plain(label) in _OPTIMIZER:
        found.optimizer[_OPTIMIZER[plain(label)]] = searched
    elif searched is not None and plain(label) in _DATA:
        found.data[_DATA[plain(label)]] = searched
    else:
        found.picks.append(pick)


def _choice(label: str, given: list[Any]) -> tuple[Any, str | None]:
    if any(isinstance(item, dict | list) for item in given):
        return given, None
    shown = ", ".join(one_line(repr(item)) for item in given[:_LINE]) + (", ..." if len(given) > _LINE else "")
    return {"pick": given}, f"pick({one_line(repr(label))}, [{shown}])"


def _range(kind: str, label: str, given: list[Any]) -> tuple[Any, str | None]:
    numbers = [item for item in given if isinstance(item, int | float) and not isinstance(item, bool)]
    name = one_line(repr(label))
    sound = len(numbers) == len(given) > 1 and all(-_LARGEST < number < _LARGEST for number in numbers)
    if not sound or not numbers[0] < numbers[1]:
        return None, None
    low, high, *more = numbers
    match kind:
        case "uniform":
            return {"float": [float(low), float(high)]}, f"pick.float({name}, {low}, {high})"
        case "loguniform" if low > 0:
            return {"float": [float(low), float(high)], "log": True}, f"pick.float({name}, {low}, {high}, log=True)"
        case "randint" if isinstance(low, int) and isinstance(high, int):  # NNI's upper end is excluded
            return {"int": [low, high - 1]}, f"pick.int({name}, {low}, {high - 1})"
        case "quniform" if more and more[0] > 0 and (high - low) / more[0] < _MOST_STEPS:
            return _steps(name, low, high, more[0])
    return None, None


def _steps(name: str, low: float, high: float, step: float) -> tuple[Any, str | None]:
    """Return what NNI's quniform draws: multiples of `step`, and the ends where they are none."""
    whole = all(float(number).is_integer() for number in (low, high, step))
    if whole and not low % step and not high % step:
        return {"int": [int(low), int(high)], "step": int(step)}, f"pick.int({name}, {low:g}, {high:g}, step={step:g})"
    first, last = round(low / step), round(high / step)
    found = sorted({min(max(round(step * index, 12), low), high) for index in range(first, last + 1)})
    given = [int(number) for number in found] if whole else found
    return {"pick": given}, f"pick({name}, {given})"
