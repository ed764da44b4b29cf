"""Levels of loggers for a while: the level from before returns with the end of the last block, in any thread."""

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from nasflow.system.log_level import log_level


def test_the_level_from_before_returns() -> None:
    logger = logging.getLogger("tests.log_level")
    logger.setLevel(logging.INFO)
    with pytest.raises(RuntimeError), log_level(logger.name, logging.ERROR):
        assert logger.level == logging.ERROR
        with log_level(logger.name, logging.WARNING):
            assert logger.level == logging.WARNING
        raise RuntimeError
    assert logger.level == logging.INFO


def test_blocks_of_two_threads_may_overlap() -> None:
    logger = logging.getLogger("tests.log_level")
    logger.setLevel(logging.INFO)
    first, second = log_level(logger.name, logging.ERROR), log_level(logger.name, logging.ERROR)
    with ThreadPoolExecutor(1) as another:
        first.__enter__()
        another.submit(second.__enter__).result()
        first.__exit__(None, None, None)
        assert logger.level == logging.ERROR
        another.submit(second.__exit__, None, None, None).result()
    assert logger.level == logging.INFO
