"""The program of one trial in a separate process: `python -m benchmarks.merging.trial TRIAL.json`.

It imports torch and nothing else that is slow: no Lightning, no scikit-learn (its batches come as a file of tensors),
no client of a tuner. The program that NNI starts for a trial costs more.
"""

import json
import sys
import time
from pathlib import Path

import torch

from benchmarks.merging.memory import peak_bytes
from benchmarks.merging.plain import Manner, Trial, train
from nasflow.evaluator.loading.loaders import TensorLoader


def main() -> None:
    """Train the trial and print its accuracy, the seconds the training took, and the process's peak memory."""
    torch.set_num_threads(1)
    given = json.loads(Path(sys.argv[1]).read_text())
    manner = Manner(**given["manner"])
    saved = torch.load(given["batches"], weights_only=True)
    loaders = [
        TensorLoader([tensor.to(manner.device) for tensor in tensors], batch_size, shuffle)
        for tensors, batch_size, shuffle in saved
    ]
    began = time.perf_counter()
    accuracy = train(Trial(**given["trial"]), loaders[0], loaders[1], manner)
    seconds = time.perf_counter() - began
    print(json.dumps({"accuracy": accuracy, "seconds": seconds, "peak_bytes": peak_bytes()}))


if __name__ == "__main__":
    main()
