"""What proposes and what stops trials: NNI's tuner, assessor and advisor."""

from typing import Any

from nasflow.config.from_nni.entries import Entries

_STRATEGIES = {
    "tpe": "tpe",
    "random": "random",
    "gridsearch": "grid",
    "evolution": "evolution",
    "gp": "gp",
}
_NEAREST = {
    "anneal": "tpe",
    "smac": "tpe",
    "metis": "gp",
    "dngo": "gp",
    "dngotuner": "gp",
    "batch": "grid",
    "batchtuner": "grid",
    "pbt": "evolution",
    "pbttuner": "evolution",
    "ppotuner": "evolution",
    "networkmorphism": "evolution",
}
_MINIMIZE = ("tpe", "anneal")  # unless their config says otherwise; NNI's others maximize
_OWN = "write it as a class of nasflow's, and name it as {kind: custom, target: 'mine.py:Mine'}"


def tuning(config: Entries) -> dict[str, Any]:
    """Return the `strategy`, `objectives`, `pruner` and `seed` of an experiment."""
    found: dict[str, Any] = {"strategy": {"kind": "random"}}
    tuner = config.section("tuner")
    if tuner:
        found |= _tuner(tuner)
    advisor = config.section("advisor")
    if advisor:
        found |= _advisor(advisor)
    assessor = config.section("assessor")
    if assessor:
        pruner = _assessor(assessor)
        found |= {"pruner": pruner} if pruner else {}
    return {"objectives": _objectives("maximize")} | found


def _tuner(tuner: Entries) -> dict[str, Any]:
    name, key, args = _algorithm(tuner, "builtinTunerName")
    strategy: dict[str, Any] = {"kind": _STRATEGIES.get(name, "")}
    if not name:
        tuner.notes.add(tuner.path, f"a tuner of your own; {_OWN} in `strategy`. random is used instead")
        strategy = {"kind": "random"}
    elif not strategy["kind"]:
        strategy = {"kind": _NEAREST.get(name, "random")}
        tuner.notes.add(key, f"there is no such strategy; {strategy['kind']} is used instead, see docs/from-nni.md")
    if strategy["kind"] == "evolution" and (population := args.count("population_size")):
        strategy |= {"population": population, "tournament": max(1, population // 4)}
    return {"strategy": strategy, **_common(name, args)} | _finish(tuner, args)


def _advisor(advisor: Entries) -> dict[str, Any]:
    name, key, args = _algorithm(advisor, "builtinAdvisorName")
    if name not in ("hyperband", "bohb"):
        advisor.notes.add(key, f"{_OWN} in `strategy`. random is used instead")
        return _common(name, args) | _finish(advisor, args)
    halving: dict[str, Any] = {}
    if (eta := args.count("eta")) is not None and eta >= 2:
        halving["reduction_factor"] = eta
    args.drop("the most that a trial trains is `evaluator.epochs`", "R", "max_budget")
    if budget := args.count("min_budget"):
        halving["min_epochs"] = budget
    args.drop("not needed: halving is asynchronous", "exec_mode")
    return {"strategy": {"kind": name, **halving}, **_common(name, args)} | _finish(advisor, args)


def _assessor(assessor: Entries) -> dict[str, Any] | None:
    name, key, args = _algorithm(assessor, "builtinAssessorName")
    args.drop("it follows from `objectives`", "optimize_mode")
    pruner: dict[str, Any] | None = None
    if name == "medianstop":
        pruner = {"kind": "median"}
        start = args.count("start_step")
        pruner |= {} if start is None else {"warmup_epochs": start}
    elif name == "curvefitting":
        pruner = {"kind": "halving"}
        assessor.notes.add(key, "curves are not extrapolated; pruner halving is used instead")
    else:
        assessor.notes.add(assessor.path, f"{_OWN} in `pruner`")
    _finish(assessor, args)
    return pruner


def _algorithm(entries: Entries, old: str) -> tuple[str, str, Entries]:
    """Return the name in lower case (empty for one of the user's own), its key, and the arguments."""
    key = entries.key("name", old)
    name = (entries.text("name", old) or "").lower()
    return name, key, entries.section("classArgs")


def _common(name: str, args: Entries) -> dict[str, Any]:
    key, mode, seed = args.key("optimize_mode"), args.text("optimize_mode"), args.count("seed")
    if mode not in ("minimize", "maximize"):
        why = "it is not given" if mode is None else "should be minimize or maximize"
        mode = "minimize" if name in _MINIMIZE else "maximize"
        args.notes.add(key, f"{why}; {mode} is used: check `objectives`")
    return {"objectives": _objectives(mode)} | ({} if seed is None else {"seed": seed})


def _objectives(mode: str) -> list[dict[str, str]]:
    if mode == "minimize":
        return [{"metric": "val_loss", "direction": "minimize"}]
    return [{"metric": "val_accuracy", "direction": "maximize"}]


def _finish(entries: Entries, args: Entries) -> dict[str, Any]:
    """Note what is left."""
    args.rest()
    own = ("className", "classFileName", "codeDirectory", "codeDir")
    entries.drop(f"code of your own; {_OWN}", *own)
    entries.drop("not needed: strategies use no GPU", "gpuIndices", "gpuNum")
    entries.drop("strategies see each trial's final metrics", "includeIntermediateResults")
    entries.rest()
    return {}
