"""Blocks that restore the global random generators, in threads."""

import threading

import torch

from nasflow.system.kept_generators import kept_generators


def test_blocks_of_two_threads_run_one_after_the_other() -> None:
    """The check of a search rewinds nothing of a job that trains in another thread."""
    begun, drawn = threading.Event(), threading.Event()

    def check() -> None:
        begun.set()
        with kept_generators():
            torch.rand(1)
            drawn.set()

    other = threading.Thread(target=check)
    with kept_generators():
        other.start()
        assert begun.wait(60)
        assert not drawn.wait(0.2)
    assert drawn.wait(60)
    other.join()
