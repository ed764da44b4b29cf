"""Kubernetes' own programs, built once from Debian 12's source package with Debian's Go, into a folder of the user's.

No package has them ready. The build takes some three minutes on two cores, and needs no root.
"""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

FOLDER = Path.home() / ".cache" / "nasflow-tests" / "kubernetes"  # not XDG_CACHE_HOME, which tests have of their own
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
_VERSION = "1.20.2"
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Go 1.18 and newer crash with the reflect2 in Kubernetes' source at the first object of a custom resource.
_REFLECT2 = Path("/usr/share/gocode/src/github.com/modern-go/reflect2")
_OPENAPI = "pkg/generated/openapi"  # the one generated package that the source lacks
_NOT_OURS = ("code-generator", "sample-apiserver", "gengo", "kube-openapi")


def lacking() -> str:
    """What there is not, of what Kubernetes takes; nothing if it can be started, perhaps after it has been built."""
    if not shutil.which("etcd"):
        return "etcd (Debian: etcd-server)"
    if _built():
        return ""
    if not shutil.which("go") or not shutil.which("dpkg-source") or not _REFLECT2.exists():
        return "Go (Debian: golang-go golang-github-modern-go-reflect2-dev dpkg-dev)"
    return "" if _archive() else "Debian 12's sources, for no other release has Kubernetes' servers"


def programs() -> Path:
    """The folder with the programs. They are built if they are not there; one process builds, others wait for it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _built():
            work = FOLDER / "build"
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            _build(work)
            shutil.rmtree(work)
    return FOLDER


def _built() -> bool:
    return all((FOLDER / name).exists() for name in PROGRAMS)


def _archive() -> str:
    """The address of the archive that this system's apt has Debian 12 from."""
    if not shutil.which("apt-get"):
        return ""
    wanted = ["Created-By: Packages", "Codename: bookworm", "Component: main"]
    found = _run(["apt-get", "indextargets", "--format", "$(REPO_URI)", *wanted], Path("/"))
    return next(iter(found.split()), "")


def _build(work: Path) -> None:
    tree = work / "src" / "k8s.io" / "kubernetes"
    _unpack(work, tree)
    vendored = tree / "vendor" / "github.com" / "modern-go" / "reflect2"
    shutil.rmtree(vendored)
    shutil.copytree(_REFLECT2, vendored)
    go = {
        "GOPATH": str(work),
        "GO111MODULE": "off",  # its go.mod wants what Debian's source has left out
        "GOFLAGS": "",
        "GOPROXY": "off",
        "GOCACHE": str(work / "cache"),
        "GOGC": "off",  # the compiler collects no garbage
        "GOMEMLIMIT": "2GiB",  # before it has so much
        "CGO_ENABLED": "0",
        "HOME": str(work),
    }
    _generate_openapi(work, tree, go)
    facts = {"gitVersion": f"v{_VERSION}", "gitMajor": "1", "gitMinor": "20", "gitTreeState": "clean"}
    variables = [f"-X k8s.io/kubernetes/vendor/k8s.io/component-base/version.{key}={facts[key]}" for key in facts]
    quick = ["-gcflags", "all=-dwarf=false", "-ldflags", " ".join(["-s -w", *variables])]  # to build
    options = [*quick, "-tags", "providerless", "-o", f"{work}/made/"]  # without the clouds
    _run(["go", "build", *options, *(f"./cmd/{name}" for name in PROGRAMS)], tree, go)
    for name in PROGRAMS:
        (work / "made" / name).rename(FOLDER / name)


def _unpack(work: Path, tree: Path) -> None:
    """Fetch the source package, by an apt of its own that knows sources, and unpack it."""
    for folder in ("parts", "lists/partial", "cache/archives/partial", "src/k8s.io"):
        (work / folder).mkdir(parents=True)
    entry = {"Types": "deb-src", "URIs": _archive(), "Suites": "bookworm", "Components": "main", "Signed-By": _KEYS}
    (work / "parts" / "one.sources").write_text("".join(f"{key}: {value}\n" for key, value in entry.items()))
    places = {"Etc::sourcelist": "/dev/null", "Etc::sourceparts": work / "parts", "State::lists": work / "lists"}
    options = [f"-oDir::{key}={value}" for key, value in {**places, "Cache": work / "cache"}.items()]
    apt = ["apt-get", "-qq", *options, "-oAPT::Sandbox::User="]
    _run([*apt, "update"], work)
    _run([*apt, "source", "--download-only", "kubernetes"], work)
    (description,) = work.glob("kubernetes_*.dsc")
    _run(["dpkg-source", "-q", "--no-check", "-x", description, tree], work)


def _generate_openapi(work: Path, tree: Path, go: dict[str, str]) -> None:
    generator = work / "openapi-gen"
    _run(["go", "build", "-o", generator, "./vendor/k8s.io/kube-openapi/cmd/openapi-gen"], tree, go)
    places = [tree / "pkg", tree / "cmd", tree / "plugin", *(tree / "vendor" / "k8s.io").iterdir()]
    files = [file for place in places if place.name not in _NOT_OURS for file in Path(place).resolve().rglob("*.go")]
    marked = {
        file.parent
        for file in files
        if not file.name.endswith("_test.go")
        and "testdata" not in file.parts
        and b"+k8s:openapi-gen=" in file.read_bytes()
    }
    vendored = {(tree / "vendor" / "k8s.io" / each.name).resolve(): each.name for each in places[3:]}
    names = {_import_name(folder, tree, vendored) for folder in marked}
    _run(
        [
            *(generator, "--logtostderr", "-i", ",".join(sorted(names)), "-p", f"k8s.io/kubernetes/{_OPENAPI}"),
            *("-O", "zz_generated.openapi", "-h", "vendor/k8s.io/code-generator/hack/boilerplate.go.txt"),
            *("--output-base", work / "src", "-r", work / "violations"),
        ],
        tree,
        go,
    )


def _import_name(folder: Path, tree: Path, vendored: dict[Path, str]) -> str:
    """The name by which a package is imported; those of k8s.io are links from the vendored ones to `staging`."""
    for place, name in vendored.items():
        if folder.is_relative_to(place):
            return f"k8s.io/kubernetes/vendor/k8s.io/{name}/{folder.relative_to(place)}".removesuffix("/.")
    return f"k8s.io/kubernetes/{folder.relative_to(tree.resolve())}"


def _run(command: list, cwd: Path, more: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=os.environ | (more or {}), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} {command[1]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout
