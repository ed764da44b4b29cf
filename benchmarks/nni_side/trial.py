"""The trial program of the NNI experiment: one process trains one architecture in plain PyTorch."""

import os

import nni
import torch
from torch.nn import functional as F

from benchmarks.plain_mlp import build_model, load_data


def main() -> None:
    epochs, seed = int(os.environ["BENCHMARK_EPOCHS"]), int(os.environ["BENCHMARK_SEED"])
    architecture = nni.get_next_parameter()
    torch.set_num_threads(1)
    torch.manual_seed(seed + nni.get_sequence_id())
    train_loader, val_loader = load_data()
    model = build_model(architecture)
    optimizer = torch.optim.AdamW(model.parameters(), lr=architecture["optimizer.lr"])
    for epoch in range(epochs):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = sum(int((model(x).argmax(1) == y).sum()) for x, y in val_loader)
        accuracy = right / len(val_loader.dataset)  # type: ignore[arg-type]
        if epoch + 1 < epochs:
            nni.report_intermediate_result(accuracy)
    # NNI 3.0 may put a trial's parameters on another trial's record, so the result includes the learning rate.
    nni.report_final_result({"default": accuracy, "lr": architecture["optimizer.lr"]})


if __name__ == "__main__":
    main()
