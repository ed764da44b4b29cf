"""The command line of the merging benchmark."""

import argparse
import logging
import tempfile
import warnings
from pathlib import Path
from types import ModuleType

import torch

from benchmarks.merging.report import emit
from benchmarks.merging.workloads import (
    planning,
    w1_mlps,
    w2_cells,
    w3_data_bound,
    w4_frozen_trunk,
    w5_faults,
    w6_gpu,
    w7_lightning,
    w9_unlike,
)
from nasflow.errors import UserError

WORKLOADS: dict[str, ModuleType] = {
    "W1": w1_mlps,
    "W2": w2_cells,
    "W3": w3_data_bound,
    "W4": w4_frozen_trunk,
    "W5": w5_faults,
    "W6": w6_gpu,
    "W7": w7_lightning,
    "W9": w9_unlike,
    "planning": planning,
}


def make_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with one sub-command per workload."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("benchmarks.merging", description=description, formatter_class=formatter)
    commands = parser.add_subparsers(dest="workload", required=True)
    for name, module in WORKLOADS.items():
        text = module.__doc__ or ""
        line = text.partition("\n")[0].replace("%", "%%")
        command = commands.add_parser(name, help=line, description=text, formatter_class=formatter)
        command.add_argument("--json", type=Path, help="write the line of JSON to this file too")
        command.add_argument("--folder", type=Path, help="where jobs are run; default: the system's temporary folder")
        module.add_arguments(command)
    return parser


def run_command(description: str, words: list[str] | None = None) -> int:
    """Run the workload that `words` (default: the command line) name. Return the exit code."""
    arguments = make_parser(description).parse_args(words)
    torch.set_num_threads(1)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    try:
        with tempfile.TemporaryDirectory(prefix="nasflow-benchmark-", dir=arguments.folder) as folder:
            results = WORKLOADS[arguments.workload].run(arguments, Path(folder))
    except UserError as error:
        print(f"error: {error}")
        return 2
    emit(arguments.workload, vars(arguments), results, arguments.json)
    return 0
