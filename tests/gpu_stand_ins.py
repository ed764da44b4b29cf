"""Stand-ins for NVIDIA's tools on machines without a GPU: a program `nvidia-smi`, and NVML's library (nvml_stand_in.c).

A copy of this file is the program, which answers `--query-gpu`, `--query-compute-apps` (with `--format=csv` and its
options) and `-L` in the words of the real one, from the JSON file beside it. No card was there to compare it with.
"""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)
_UNITS = {"memory.total": "MiB", "memory.used": "MiB", "memory.free": "MiB", "utilization.gpu": "%"}
_UNITS |= {"used_memory": "MiB", "used_gpu_memory": "MiB"}


class NvidiaSmi:
    """The program `<folder>/nvidia-smi`, and the machine that it tells of: at first one whose GPUs nobody uses."""

    def __init__(self, folder: Path, gpus: int):
        self.folder = folder
        self._file = folder / "nvidia-smi.json"
        folder.mkdir(parents=True, exist_ok=True)
        program = folder / "nvidia-smi"
        program.write_text(f"#!{sys.executable} -IS\n{Path(__file__).read_text()}")
        program.chmod(0o755)
        self._state = {"gpus": [_gpu(index) for index in range(gpus)], "failure": None, "wait_for": None}
        self._write()

    def use(self, gpu: int, *pids: int | None) -> None:
        """These processes, and no others, compute on a GPU; of None it can't say which one it is."""
        self.tell(gpu, pids=list(pids), used=3 + 500 * len(pids))

    def tell(self, gpu: int, **about) -> None:
        """Set what is told of a GPU: `name`, `uuid`, `total` and `used` (MiB), `utilisation`; None: it is unknown."""
        self._state["gpus"][gpu].update(about)
        self._write()

    def fail(self, words: str | None, code: int = 9) -> None:
        """End with these words and exit code from now on; None: answer again."""
        self._state["failure"] = None if words is None else [words, code]
        self._write()

    def hang(self, until: Path | None) -> None:
        """Answer only once a file is there."""
        self._state["wait_for"] = until and str(until)
        self._write()

    def _write(self) -> None:
        aside = self._file.with_suffix(".new")
        aside.write_text(json.dumps(self._state))
        aside.replace(self._file)


def build_nvml(folder: Path, *options: str) -> None:
    """Compile `<folder>/libnvidia-ml.so.1`, for an LD_LIBRARY_PATH. The options are the compiler's."""
    folder.mkdir(parents=True, exist_ok=True)
    source, library = Path(__file__).with_name("nvml_stand_in.c"), folder / "libnvidia-ml.so.1"
    compiler = shutil.which("gcc")
    assert compiler is not None
    subprocess.run([compiler, "-Wall", "-Werror", "-shared", "-fPIC", *options, "-o", library, source], check=True)


def _gpu(index: int) -> dict:
    return {
        "index": index,
        "uuid": f"GPU-{index:08x}-7a1c-4c5e-9b1d-0123456789ab",
        "name": "NVIDIA H100 80GB HBM3",
        "total": 81559,
        "used": 3,
        "utilisation": 0,
        "pids": [],
    }


def _about(gpu: dict) -> dict[str, object]:
    known = None not in (gpu["total"], gpu["used"])
    return {
        "index": gpu["index"],
        "uuid": gpu["uuid"],
        "name": gpu["name"],
        "pci.bus_id": f"00000000:{gpu['index'] + 1:02X}:00.0",
        "driver_version": "550.54.15",
        "memory.total": gpu["total"],
        "memory.used": gpu["used"],
        "memory.free": gpu["total"] - gpu["used"] if known else None,
        "utilization.gpu": gpu["utilisation"],
    }


def _processes(gpu: dict) -> list[dict[str, object]]:
    return [
        {"gpu_uuid": gpu["uuid"], "gpu_name": gpu["name"], "pid": pid, "process_name": "python", "used_memory": 500}
        for pid in gpu["pids"]
    ]


def _table(rows: list[dict[str, object]], fields: list[str], style: list[str]) -> list[str]:
    """The lines of a CSV answer."""

    def cell(row: dict[str, object], field: str) -> str:
        value = row[field]
        if value is None:
            return "[N/A]"
        return f"{value} {_UNITS[field]}" if field in _UNITS and "nounits" not in style else str(value)

    titles = [f"{field} [{_UNITS[field]}]" if field in _UNITS else field for field in fields]
    header = [] if "noheader" in style else [", ".join(titles)]
    return header + [", ".join(cell(row, field) for field in fields) for row in rows]


def _answer(state: dict, arguments: list[str]) -> tuple[str, int]:
    """What the program prints, and its exit code."""
    options = dict(argument.lstrip("-").split("=", 1) for argument in arguments if "=" in argument)
    gpus = state["gpus"]
    if state["failure"]:
        return state["failure"]
    if not gpus:
        return "No devices were found", 6
    if "-L" in arguments:
        return "\n".join(f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})" for gpu in gpus), 0
    query = next(name for name in ("query-gpu", "query-compute-apps") if name in options)
    fields, style = options[query].split(","), options["format"].split(",")
    rows = [_about(gpu) for gpu in gpus] if query == "query-gpu" else [row for gpu in gpus for row in _processes(gpu)]
    known = _about(_gpu(0)) if query == "query-gpu" else _processes(_gpu(0) | {"pids": [1]})[0]
    for field in fields:
        if field not in known:
            return f'Field "{field}" is not a valid field to query.\n', 2
    return "\n".join(_table(rows, fields, style)), 0


def main() -> None:
    """Be `nvidia-smi`."""
    state = json.loads(Path(__file__).with_name("nvidia-smi.json").read_text())
    while state["wait_for"] and not Path(state["wait_for"]).exists():
        time.sleep(0.01)
    text, code = _answer(state, sys.argv[1:])
    sys.stdout.write(text + "\n" if text else "")
    sys.exit(code)


if __name__ == "__main__":
    main()
