"""NNI's services on Kubernetes: Kubeflow, FrameworkController and AdaptDL."""

from nasflow.config.from_nni.entries import Entries
from nasflow.config.from_nni.request import MOUNT, TRIAL_COMMAND, Request, Section

_ONE_POD = "not needed: a job of nasflow's has one pod"


def kubeflow(request: Request, section: Section) -> None:
    """Fill a section of kind kubeflow."""
    service = request.service
    service.drop("not needed: a job of nasflow's is a PyTorchJob of version v1", "operator", "apiVersion")
    roles = [home.section(name) for home in request.homes() for name in ("worker", "master", "ps")]
    _roles(request, section, [role for role in roles if role])
    _common(request, section)


def framework_controller(request: Request, section: Section) -> None:
    """Fill a section of kind frameworkcontroller."""
    for home in request.homes():
        key = home.key("serviceAccountName")
        section.put(key, home.text("serviceAccountName"), "service_account")
    roles = [role for home in request.homes() for role in home.sections("taskRoles")]
    for role in roles:
        role.take("name")
    _roles(request, section, roles)
    request.service.drop(_ONE_POD, "apiVersion")
    _common(request, section)


def adaptdl(request: Request, section: Section) -> None:
    """Fill a section of kind adaptdl."""
    for home in request.homes():
        home.drop("jobs don't change their number of replicas; trials share a job instead", "adaptive")
        home.drop("checkpoints are in `work_dir`, which a volume holds; `checkpoint` says which are kept", "checkpoint")
        secrets = [item.text("name") for item in home.sections("imagePullSecrets")]
        section.put(home.key("imagePullSecrets"), [name for name in secrets if name] or None, "image_pull_secrets")
    _common(request, section)


def _common(request: Request, section: Section) -> None:
    request.put_jobs(section)
    request.put_image(section)
    for home in request.homes():
        section.put(home.key("namespace"), home.text("namespace"), "namespace")
        _storage(section, home)


def _roles(request: Request, section: Section, roles: list[Entries]) -> None:
    """Take image and resources from the first role; a job is one pod, so there are no others."""
    for place, role in enumerate(roles):
        if place:
            role.notes.add(role.path, f"{_ONE_POD}; of the roles, the first one's image and resources are printed")
            continue
        replicas = role.count("replicas", "taskNum", "taskNumber")
        if replicas and replicas > 1:
            role.notes.add(role.path, "a job has one pod, not several replicas; `max_jobs` is what to raise")
        inner = Request(role, Entries({}, "", role.notes), request.shared, None, request.gpus, [])
        inner.put_jobs(section)
        inner.put_image(section)
        role.drop(TRIAL_COMMAND, "command")
        role.drop("the image, or a volume, has the code", "codeDirectory", "codeDir")
        role.drop("create a Secret for the registry, and name it in `image_pull_secrets`", "privateRegistryAuthPath")
        role.drop(_ONE_POD, "frameworkAttemptCompletionPolicy")
        role.rest()


def _storage(section: Section, home: Entries) -> None:
    """Put an NFS export as a volume; note what to do with other storages."""
    key = home.key("storage")
    value = home.take("storage")  # version 1 has its name, version 2 all of it
    place = Entries(value, key, home.notes) if isinstance(value, dict) else home
    nfs = home.section("nfs") or place
    server, path = nfs.text("server"), nfs.text("path")
    mount = nfs.text("containerMountPath", "containerMountPoint") or MOUNT
    nfs.drop("the export is to be mounted where the pods have it", "localMountPoint")
    if server and path:
        section.put(key, [{"name": "nasflow", "nfs": {"server": server, "path": path}}], "volumes")
        section.put(key, [{"name": "nasflow", "mountPath": mount}], "volume_mounts")
        section.work_dir = f"{mount.rstrip('/')}/nasflow-runs"
        text = "mount the NFS export on this machine too, where `volume_mounts` has it: jobs see `work_dir` there"
        home.notes.add(key, text)
    place.drop("see `volumes`", "storageType")
    place.drop(_OTHER_STORAGE, "azureStorage", "azureAccount", "azureShare", "keyVault", "keyVaultName", "keyVaultKey")
    if place is not home:
        place.rest()
    if nfs is not place:
        nfs.rest()


_OTHER_STORAGE = "make a PersistentVolumeClaim of it, name it in `volumes` and `volume_mounts`, and mount it here too"
