"""Objects by import path: which module an import finds, edited files, and workers that were not forked."""

import importlib
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from nasflow.errors import ConfigError
from nasflow.load_target import _LocalImports, load_target, refuse_changed


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))


def refuse(target: str, base_dir: Path, file: str) -> None:
    with pytest.raises(ConfigError, match=rf"/{file} has changed since this process imported it, and .* restart the"):
        refuse_changed([target], base_dir)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of code; what it adds to this process is dropped at the end."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("order", [("models/net.py", "data/rows.py"), ("data/rows.py", "models/net.py")])
def test_one_name_in_two_folders_is_refused_in_any_order(base: Path, order: tuple[str, str]) -> None:
    write(base / "models", net="from twin_helpers import MADE", twin_helpers="MADE = 'models'")
    write(base / "data", rows="from other import MADE", other="from twin_helpers import MADE")
    write(base / "data", twin_helpers="MADE = 'data'")
    first, second = order
    assert load_target(f"{first}:MADE", base) == first.partition("/")[0]
    said = rf"target '{second}:MADE': 'twin_helpers' is .*{first.partition('/')[0]}/twin_helpers\.py .* can't be .*"
    with pytest.raises(ConfigError, match=said + rf"{second.partition('/')[0]}/twin_helpers\.py; rename one"):
        load_target(f"{second}:MADE", base)
    with pytest.raises(ConfigError, match="rename one"):  # as before, not half imported
        load_target(f"{second}:MADE", base)


def test_a_target_finds_the_modules_beside_it_and_then_those_of_the_config(base: Path) -> None:
    write(base, near_helpers="MADE = 'config'", shared_helpers="MADE = 'shared'", rows="DATA = 1")
    write(base / "models", net="import near_helpers, shared_helpers\nMADE = near_helpers.MADE, shared_helpers.MADE")
    write(base / "models", near_helpers="MADE = 'models'")
    assert load_target("rows.py:DATA", base) == 1
    assert load_target("models/net.py:MADE", base) == ("models", "shared")


def test_an_installed_package_is_no_file_of_its_name(base: Path) -> None:
    write(base, yaml="raise RuntimeError", net="import yaml\nMADE = yaml.safe_load('1')")
    assert load_target("net.py:MADE", base) == 1


def test_an_edited_file_is_imported_again(base: Path) -> None:
    write(base, net="class Net:\n    width = 1")
    first = load_target("net.py:Net", base)
    assert load_target("net.py:Net", base) is first
    write(base, net="class Net:\n    width = 2")  # as long, and perhaps within a tick of the disk's clock
    assert (first.width, load_target("net.py:Net", base).width) == (1, 2)
    write(base, net="class Net:\n    width = 1")
    assert load_target("net.py:Net", base) is first


def test_an_edited_module_that_a_target_imports_is_refused(base: Path) -> None:
    write(base / "edited_nets", __init__="from .edited_layers import MADE", edited_layers="MADE = 'relu'")
    write(
        base, edited_blocks="import edited_nets", edited_other="MADE = 1", net="from edited_blocks import edited_nets"
    )
    write(base, edited_build="def build():\n    import edited_late")
    refuse_changed(["net.py:edited_nets", "edited_build:build"], base)
    load_target("net.py:edited_nets", base)
    load_target("edited_other:MADE", base)
    refuse_changed(["net.py:edited_nets", "edited_other:MADE"], base)
    write(base / "edited_nets", edited_layers="MADE = 'gelu'")
    write(base, edited_other="MADE = 2")
    refuse("net.py:edited_nets", base, "edited_nets/edited_layers.py")
    refuse("edited_other:MADE", base, "edited_other.py")  # a module's own file is not imported again
    write(base / "edited_nets", edited_layers="MADE = 'relu'")
    write(base, net="from edited_blocks import edited_nets  # a target's own file")
    refuse_changed(["net.py:edited_nets"], base)
    write(base, edited_late="MADE = 1")
    load_target("edited_build:build", base)()
    write(base, edited_late="MADE = 2")
    refuse("edited_build:build", base, "edited_late.py")  # imported after its target


def test_a_module_that_could_not_be_imported_may_be_mended(base: Path) -> None:
    write(base, net="from mended_blocks import MADE", mended_blocks="MADE =")
    with pytest.raises(SyntaxError):
        load_target("net.py:MADE", base)
    write(base, mended_blocks="MADE = 1")
    refuse_changed(["net.py:MADE"], base)
    assert load_target("net.py:MADE", base) == 1
    refuse_changed(["net.py:MADE"], base)


def test_a_module_that_was_edited_before_the_first_search_is_refused(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was imported before nasflow was, as by a notebook's first cell."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    sys.meta_path.remove(_LocalImports)
    sys.path.append(str(base))
    write(base, early_blocks="WIDTH = 10", net="from early_blocks import WIDTH")
    importlib.import_module("early_blocks")
    write(base, early_blocks="WIDTH = 10  # as it was")
    refuse_changed(["net.py:WIDTH"], base)
    write(base, earlier_blocks="WIDTH = 10", net="from earlier_blocks import WIDTH")
    importlib.invalidate_caches()
    importlib.import_module("earlier_blocks")
    write(base, earlier_blocks="WIDTH = 20")
    refuse("net.py:WIDTH", base, "earlier_blocks.py")


def test_an_object_of_a_file_is_unpickled_where_the_file_was_not_loaded(base: Path) -> None:
    write(base, rows="class Rows:\n    size = 3")
    rows = load_target("rows.py:Rows", base)
    pickled = pickle.dumps(rows())
    del sys.modules[rows.__module__]
    assert pickle.loads(pickled).size == 3
    assert rows.__module__ in sys.modules


@pytest.mark.long
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_not_forked_know_the_classes_of_a_file(base: Path, method: str) -> None:
    write(
        base / "code",
        rows="""
        from torch.utils.data import Dataset
        from sizes import SIZE

        class Rows(Dataset):
            def __len__(self):
                return SIZE

            def __getitem__(self, place):
                return place

        def doubled(samples):
            return [2 * sample for sample in samples]
        """,
        sizes="SIZE = 3",
    )
    write(
        base,
        job=f"""
        from pathlib import Path
        from torch.utils.data import DataLoader
        from nasflow.load_target import load_target

        if __name__ == "__main__":
            rows, doubled = (load_target(f"code/rows.py:{{name}}", Path({str(base)!r})) for name in ("Rows", "doubled"))
            Path({str(base)!r}, "code/rows.py").open("a").write("\\n# edited meanwhile")
            loader = DataLoader(rows(), collate_fn=doubled, num_workers=1, multiprocessing_context={method!r})
            print(list(loader))
        """,
    )
    run = [sys.executable, str(base / "job.py")]
    done = subprocess.run(run, capture_output=True, text=True, env=os.environ, timeout=120, check=False)
    assert done.stdout == "[[0], [2], [4]]\n", done.stderr


def test_another_thread_waits_until_a_file_is_imported(base: Path) -> None:
    write(
        base,
        own="""
        import threading
        from pathlib import Path
        from nasflow.load_target import load_target

        seen = []
        other = threading.Thread(target=lambda: seen.append(load_target("own.py:MADE", Path(__file__).parent)))
        other.start()
        other.join(0.1)
        MADE = "whole"
        """,
    )
    load_target("own.py:other", base).join(10)
    assert load_target("own.py:seen", base) == ["whole"]
