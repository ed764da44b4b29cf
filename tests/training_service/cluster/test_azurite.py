"""Nodes that share no folder with the controller keep the contract by Azure's blobs, on Azurite."""

from collections.abc import Iterator

import psutil
import pytest

from nasflow.errors import ServiceError
from nasflow.testing.service_jobs import epochs, script, until
from tests.handful import handful
from tests.object_store import azurite
from tests.object_store.far import FarNodesContract
from tests.object_store.s3 import on_nodes
from tests.training_service.cluster import nodes

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[azurite.Azurite]:
    """In the place of an S3 server."""
    if reason := azurite.lacking():
        pytest.skip(f"needs {reason}")
    if (program := azurite.program()) is None:
        pytest.skip(f"needs npm's registry, or Azurite in {azurite.FOLDER}")
    server = azurite.Azurite(program, tmp_path_factory.mktemp("azurite"))
    yield server
    server.close()


@pytest.fixture(autouse=True)
def scratch(s3, tmp_path, monkeypatch):
    code = tmp_path / "code"
    code.mkdir()
    monkeypatch.chdir(code)  # base_dir of scripted jobs
    folder = tmp_path / "cluster"
    monkeypatch.setenv(nodes.SETTINGS, nodes.settings(folder, on_nodes(s3.storage())))
    return folder


@handful
class TestAzurite(FarNodesContract):
    """The rest: TestObjectStore, on an S3 server."""

    factory = f"{nodes.__file__}:make"

    def lose(self, service, handle):
        """The cluster's own process of it, whose death ends the program on the node."""
        [note] = self.scratch.glob(f"*-{handle.job_id}-*.pid")
        nodes.processes_of(note)[0].kill()


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"url": "az://nowhere/x"}, "No such container: 'nowhere'"),
        ({"key": "d3Jvbmc="}, "Server failed to authenticate the request"),
    ],
    ids=["container", "key"],
)
def test_validate_says_what_is_wrong(section, says, s3, tmp_path, monkeypatch):
    storage = s3.storage()
    storage["url"] = section.get("url", storage["url"])
    connection = storage["options"]["connection_string"].replace(azurite.KEY, section.get("key", azurite.KEY))
    storage["options"] = {"connection_string": connection}
    monkeypatch.setenv(nodes.SETTINGS, nodes.settings(tmp_path / "cluster", on_nodes(storage)))
    with pytest.raises(ServiceError) as refused:
        nodes.make(tmp_path / "root", 1).validate()
    said = str(refused.value)
    assert says in said and said.startswith("training_service.storage") and "\n" not in said
    assert azurite.KEY not in said


def test_no_credential_is_in_a_file_a_command_line_or_a_log(s3, scratch, tmp_path, caplog):
    service = nodes.make(tmp_path / "root", 1)
    service.validate()
    handle = service.submit(script("job", ["epoch", 1], ["wait", "never"]))
    until(lambda: epochs(service, handle), "first epoch", 60)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and not [path for path in files if azurite.KEY.encode() in path.read_bytes()]
    lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert not [line for line in lines if azurite.KEY in line]
    assert azurite.KEY not in caplog.text + service.log_tail(handle)
    service.cleanup()
    assert s3.objects() == []
