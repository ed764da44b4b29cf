"""Scripts and notebooks that call `search`, as their own targets and with modules that are edited meanwhile."""

import textwrap
from pathlib import Path

from tests.flows.forked_commands import run_forked
from tests.flows.searches import ONE_TRIAL, Searches

_CONFIG = f"""
from nasflow.config import SearchConfig
from nasflow.flows import search

def config(name, target):
    return SearchConfig(**{ONE_TRIAL!r} | {{"name": name, "space": {{"target": target}}}})
"""
_SPACE = """
from torch import nn
{imported}

def build(pick):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, pick("width", [8, 16])), {activation}, nn.LazyLinear(10))
"""


def _write(folder: Path, name: str, *parts: str) -> None:
    (folder / f"{name}.py").write_text("\n".join(map(textwrap.dedent, parts)))


def test_a_script_that_searches_when_it_is_imported_is_refused_before_anything_trains(searches: Searches) -> None:
    space = _SPACE.format(imported="", activation="nn.ReLU()")
    _write(searches.folder, "my", space, _CONFIG, 'search(config("own", "my.py:build"))')
    said = (
        "nasflow.errors.ConfigError: target 'my.py:build': its import calls search(), and each job imports it; put "
        'that call under if __name__ == "__main__":'
    )
    ended = run_forked(["python", "my.py"], searches.folder, searches.server.env)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == said
    assert not (searches.folder / "nasflow-runs").exists()

    # as a job, which no flow has started
    import_it = (
        "from pathlib import Path; from nasflow.load_target import load_target; load_target('my.py:build', Path())"
    )
    without_server = {name: value for name, value in searches.server.env.items() if name != "PREFECT_API_URL"}
    ended = run_forked(["python", "-c", import_it], searches.folder, without_server)
    assert ended.stderr.startswith("Traceback")  # Prefect has logged nothing
    assert ended.stderr.splitlines()[-1] == said


def test_a_module_that_is_edited_between_two_searches_of_a_process_is_refused(searches: Searches) -> None:
    """Its models would be built by the old code, with weights of the new."""
    _write(searches.folder, "script_blocks", "from torch.nn import ReLU as Act")
    imported = "from script_blocks import Act"
    _write(searches.folder, "script_space", _SPACE.format(imported=imported, activation="Act()"))
    _write(
        searches.folder,
        "notebook",
        _CONFIG,
        """
        from pathlib import Path

        def said(call):
            try:
                return call()
            except Exception as error:
                return f"{type(error).__name__} {error}"

        first = search(config("first", "script_space.py:build"))
        print(first.best.model[2])
        Path("script_blocks.py").write_text("from torch.nn import GELU as Act")
        print(said(lambda: first.best.model))
        print(said(lambda: search(config("second", "script_space.py:build"))))
        """,
    )
    ended = run_forked(["python", "notebook.py"], searches.folder, searches.server.env)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    model, *refused = ended.stdout.splitlines()[-3:]
    assert model == "ReLU()"
    for line in refused:
        assert line.startswith(
            f"ConfigError {searches.folder}/script_blocks.py has changed since this process imported"
        )
