"""`nasflow from-nni`: prints the search config for the config of an NNI experiment."""

import sys
from pathlib import Path

from nasflow.config.from_nni.experiment import from_nni

from .console import console


def print_translated(path: Path) -> None:
    """Print the search config as YAML, and on standard error a line for each key that is not translated.

    Raises:
        ConfigError: the file is no NNI config.
    """
    translation = from_nni(path)
    sys.stdout.write(translation.text)
    errors = console(stderr=True)
    for note in translation.notes:
        errors.print(note)
    if translation.error is not None:
        errors.print(f"the printed config is not complete: {translation.error}", style="red")
