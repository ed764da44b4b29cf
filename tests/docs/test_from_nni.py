"""What docs/from-nni.md names in nasflow exists, nothing of NNI's is left out, and its example works."""

import ast
import importlib
import inspect
import random
import re
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import typer.main
import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError
from pytorch_lightning import LightningModule

from nasflow.config.from_nni.services import kinds
from nasflow.config.search import SearchConfig, load_config
from nasflow.config.secret.secrets import Secret
from nasflow.config.services.ssh import SshHostConfig
from nasflow.evaluator.candidate import candidate_space
from nasflow.flows.cli import app, main
from nasflow.flows.ui import trial_events
from nasflow.space.pick import Pick

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "from-nni.md").read_text()
FILES = re.compile(r"^```(?:python|yaml)\n# (?P<name>[\w.]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = {block["name"]: block["text"] for block in FILES.finditer(TEXT)}
COMMANDS = [line.removeprefix("$ ") for line in TEXT.splitlines() if line.startswith("$ ")]

USAGE_ERROR: Any = typer.BadParameter.__base__  # of the click that Typer uses: its own, or the package

# What shells, Python and the repository name so; everything else must be found.
PLAIN = {"if", "for", "build(pick)", "cp -a", "--json", "make search", ".nasflowignore", "parameters"}
EVENTS = {value for value in vars(trial_events).values() if isinstance(value, str) and value.startswith("nasflow.")}

# Of NNI 3.0: the public names of nni.nas, the keys of its experiment, its tuners and assessors, nnictl's commands; and
# what older versions had.
NNI = """
ModelSpace LayerChoice InputChoice ChosenInputs ReductionType ValueChoice Repeat Cell MutationAnchor MutableModule
ParametrizedModule MutableLinear nni.choice nni.uniform nni.loguniform nni.quniform nni.qloguniform nni.normal
nni.qnormal nni.trace Categorical CategoricalMultiple Numerical MutableExpression MutableSymbol MutableAnnotation
MutableList MutableDict Constraint ExpressionConstraint label_scope auto_label freeze model_context frozen_context
random grid default validate contains simplify Mutator StationaryMutator MutatorSequence MutationSampler raw
simplified graph TorchScript TensorFlow Classification Regression Lightning FunctionalEvaluator MutableEvaluator
FrozenEvaluator mock_runtime MultiModelLightningModule MultiModelTrainer NasBench101Benchmark NasBench201Benchmark nds
nlp ONNX Random GridSearch RegularizedEvolution TPE TPEStrategy HPOTunerStrategy PolicyBasedRL DARTS GumbelDARTS
Proxyless ENAS RandomOneShot Deduplication FailureHandler Filter MedianStop MultipleEvaluation Chain ProfilerFilter
ExpectationProfilerPenalty SampleProfilerPenalty SMAC Metis DNGO Anneal PBT PPO BatchTuner Evolution GP Medianstop
Curvefitting Hyperband BOHB py TrainingServiceExecutionEngine SequentialExecutionEngine CrossGraphOptimization cgo
benchmark max_concurrency_cgo batch_waiting_time DedupInputOptimizer submit_models wait_models list_models
budget_available idle_worker_available register_model_event_callback Middleware local remote Kubeflow
FrameworkController AdaptDL OpenPAI DLTS AML DLC hybrid reuse shared trial_command trial_code_directory
trial_gpu_number max_trial_number_per_gpu use_active_gpu gpu_indices .nniignore nni_manager_ip NasExperiment resume
run_or_resume view connect stop experiment_name experiment_working_directory search_space search_space_file
trial_concurrency max_trial_number max_experiment_duration max_trial_duration tuner assessor advisor tuner_gpu_indices
debug log_level export_data get_trial_job list_trial_jobs get_job_statistics get_job_metrics
nni.report_intermediate_result nni.report_final_result nni.get_current_parameter export_top_models create update kill
export import save load delete clean webui config log top algo trainingservice ss_gen jupyter-extension hello REST
pruning quantization feature MobileNetV3Space ProxylessNAS ShuffleNetSpace AutoFormer FlopsParamsProfiler
NumParamsProfiler NnMeterProfiler
"""


def rows(header: str) -> list[list[str]]:
    """The cells of every row of the tables with that header."""
    found, inside = [], False
    for line in TEXT.splitlines():
        inside = line == header or (inside and line.startswith("|"))
        if inside and line != header and not line.startswith("| ---"):
            found.append(line.strip("| ").split(" | "))
    return found


FEATURES = rows("| in NNI | in nasflow |")
IDEAS = rows("| idea | in NNI | in nasflow |")
NAMES: dict[str, Any] = {
    name: getattr(importlib.import_module(home.strip("`")), name)
    for names, home in rows("| name | import it from |")
    for name in re.findall(r"\w+", names)
} | {"pick": Pick, "self": LightningModule}
OURS = sorted({token for row in [*FEATURES, *IDEAS] for token in re.findall(r"`([^`]+)`", row[-1])})


def sections(annotation: Any) -> list[type[BaseModel]]:
    """The models in an annotation, however deep in unions and Annotated."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for part in get_args(annotation) for section in sections(part)]


def is_key(path: str) -> bool:
    """`merge.max_members`, say; of a union, in any of its members."""
    found: list[type[BaseModel]] = [SearchConfig]
    for name in path.split("."):
        fields = [section.model_fields[name] for section in found if name in section.model_fields]
        found = [section for field in fields for section in sections(field.annotation)]
        if not fields:
            return False
    return True


def fits_the_schema(text: str) -> bool:
    """A part of a config, from which only what is left out may be missing."""
    try:
        SearchConfig.model_validate(yaml.safe_load(text))
    except ValidationError as error:
        return {each["type"] for each in error.errors()} == {"missing"}
    return True


def is_command(text: str) -> bool:
    """The command exists, and takes these arguments and options."""
    command: Any = typer.main.get_command(app)
    words = text.split()[1:]
    while hasattr(command, "commands"):
        name = words.pop(0)
        if name not in command.commands:
            return False
        command = command.commands[name]
    try:
        command.make_context(name, words)
    except USAGE_ERROR:
        return False
    return True


def is_python(text: str) -> bool:
    """A name of the page's own table, its attributes, and a call's arguments; or a dotted name of nasflow or torch."""
    node = ast.parse(text, mode="eval").body
    call = node if isinstance(node, ast.Call) else None
    head, *names = ast.unparse(call.func if call else node).split(".")
    if head in ("nasflow", "torch"):
        value = importlib.import_module(head)
        for name in names:
            inner = f"{value.__name__}.{name}" if inspect.ismodule(value) else ""
            value = getattr(value, name, None) or importlib.import_module(inner)
        return True
    if head not in NAMES:
        return False
    value = NAMES[head]
    for name in names:
        if name in getattr(value, "model_fields", {}):
            return True
        value = getattr(value, name, None)
    if call is None or value is None:
        return value is not None
    called = value.__call__ if inspect.isclass(value) and not names else value
    taken = [name for name in inspect.signature(called).parameters if name != "self"]
    given = [*map(ast.unparse, call.args), *(keyword.arg for keyword in call.keywords)]
    return given[: len(call.args)] == taken[: len(call.args)] and set(given) <= set(taken)


def members() -> set[str]:
    """What the named classes and functions have, or take as arguments."""
    found = set()
    for thing in NAMES.values():
        found |= {name for name in dir(thing) if not name.startswith("_")}
        for part in [thing, *(vars(thing).values() if inspect.isclass(thing) else ())]:
            if inspect.isfunction(part):
                found |= set(inspect.signature(part).parameters)
    return found


def exists(token: str) -> bool:
    if token in PLAIN or token in EVENTS:
        return True
    if token.startswith("{"):
        return bool(TypeAdapter(Secret).validate_python(yaml.safe_load(token)))
    if ": " in token:
        return fits_the_schema(token)
    if token.startswith("nasflow "):
        return is_command(token)
    return is_key(token) or token in members() or is_python(token)


def test_what_it_names_in_nasflow_exists():
    assert len(OURS) > 120
    assert [token for token in OURS if not exists(token)] == []


@pytest.mark.parametrize(
    "token",
    [
        "budget.days",
        "strategy: {kind: darts}",
        "strategy: {kind: grid, population: 3}",
        "nasflow fly",
        "nasflow run CONFIG --fast",
        "nasflow plan",
        "Space.fly",
        "pick.subset(label, options, n)",
        "pick.float(label, low, high, step=2)",
        "Nonsense",
    ],
)
def test_what_does_not_exist_would_be_found(token):
    assert not exists(token)


def test_it_leaves_nothing_of_nni_out():
    words = {word for row in FEATURES for word in re.findall(r"[.\w-]+", row[0])}
    assert sorted(set(NNI.split()) - words) == []


def test_every_row_says_what_to_do():
    assert len(FEATURES) > 120
    for had, here in FEATURES:
        assert had and here, had
        assert all(len(instead) > 5 for instead in here.split("**not here**")[1:]), had


def test_its_search_is_valid_and_its_models_run(tmp_path, monkeypatch, capsys):
    assert set(BLOCKS) == {"nni_search.py", "space.py", "search.yaml"}
    compile(BLOCKS["nni_search.py"], "nni_search.py", "exec")
    for name in ("space.py", "search.yaml"):
        (tmp_path / name).write_text(BLOCKS[name])
    monkeypatch.chdir(tmp_path)
    assert COMMANDS[0] == "nasflow validate search.yaml"
    monkeypatch.setattr(sys, "argv", COMMANDS[0].split())
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code, capsys.readouterr().err
    assert "search.yaml is valid" in capsys.readouterr().out

    config = load_config(Path("search.yaml"))
    space = candidate_space(config.space, config.evaluator, config.base_dir)
    rng = random.Random(0)
    for _ in range(20):
        architecture = space.sample(rng)
        assert set(architecture) == {"width", "depth", "activation", "join", "dropout", "optimizer.lr"}
        assert space.build(architecture).model(torch.zeros(5, 64)).shape == (5, 10)


TRANSLATED = ["local", "ssh", "kubernetes", "openpai", "dlts", "azureml", "dlc"]


def test_its_command_translates_a_config(tmp_path, monkeypatch, capsys):
    (line,) = re.findall(r"^```bash\n(.*)\n```$", TEXT, re.MULTILINE)
    command, _, printed = line.partition(" > ")
    (tmp_path / "config.yml").write_text((ROOT / "tests/config/from_nni/samples/remote.yml").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", command.split())
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    Path(printed).write_text(capsys.readouterr().out)
    assert load_config(Path(printed)).name == "mnist"


@pytest.mark.parametrize("kind", TRANSLATED)
def test_it_has_a_table_for_each_kind(kind):
    assert rows(f"| key in NNI | key of {kind} |")


@pytest.mark.parametrize("kind", [kind for kind in TRANSLATED if kind in kinds()])
def test_its_tables_of_services_name_keys(kind):
    """Of this version's kinds; in the second column, what stands alone between commas is a key."""
    found = rows(f"| key in NNI | key of {kind} |")
    known = kinds()[kind] | (set(SshHostConfig.model_fields) if kind == "ssh" else set()) | {"work_dir", "checkpoint"}
    named = {token for row in found for token in re.findall(r"(?:^|, )`(\w+)`", row[-1])}
    assert named - known == set()


def test_its_tables_leave_no_key_of_a_sample_out():
    tables = TEXT.partition("### local")[2].partition("## The experiment")[0]
    words = {word.lower() for word in re.findall(r"\w+", tables)}
    common = {"platform", "reusemode", "name", "minfailedtaskcount", "minsucceededtaskcount", "containermountpath"}
    for file in sorted((ROOT / "tests/config/from_nni/samples").glob("*.yml")):
        config = yaml.safe_load(file.read_text())
        found = keys_of([config.get("trainingService"), config.get("machineList"), config.get("sharedStorage")])
        assert found - words - common == set(), file.name


def keys_of(value: Any) -> set[str]:
    if isinstance(value, list):
        return {key for item in value for key in keys_of(item)}
    return {key.lower() for key in value} | keys_of(list(value.values())) if isinstance(value, dict) else set()


@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_can_be_given_so(command):
    assert is_command(command)


def test_its_links_lead_somewhere():
    def anchors(path: Path) -> set[str]:
        heads = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.MULTILINE)
        return {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}

    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert links
    for link in links:
        file, _, anchor = link.partition("#")
        path = ROOT / "docs" / (file or "from-nni.md")
        assert path.is_file(), link
        assert not anchor or anchor in anchors(path), link
