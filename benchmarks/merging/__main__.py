"""The speed-up by merging many candidates into one job: `python -m benchmarks.merging W1 --members 128`.

Each workload trains the same members, from the same seeds, on the same batches, by these contestants, interleaved in
every repeat after one warm-up, all on one core and one thread, in the environment of nasflow's own workers:

(a) a process per trial, as NNI does: starts Python, imports torch, trains one model. Timed on a sample and scaled.
(b) sequential: one model after the other in one warm process; plain PyTorch, Adam as it comes, batches sliced from
    tensors.
(c) tuned sequential: as (b) with a fused Adam, and channels_last for images.
(d) nasflow: one job of all members, from its spec to its end, checkpoints of every member after every epoch; and the
    same with checkpoints only when the job begins and ends.

All train every batch and then validate (loss and accuracy) in every epoch. Ratios are medians over the repeats of the
ratio within each. A model-step is one optimizer step of one member; its time is all time, validation too, shared out.
"""

import sys

from benchmarks.merging.pinning import pin


def main() -> int:
    """Run one workload. Return the exit code."""
    if sys.argv[1:2] != ["W6"]:  # processes that share a GPU need their own cores
        pin("benchmarks.merging")
    from benchmarks.merging.command import run_command  # noqa: PLC0415 - torch reads its environment when imported

    return run_command(__doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
