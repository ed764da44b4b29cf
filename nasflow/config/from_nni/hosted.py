"""NNI's services with an API of their own: OpenPAI, DLTS, Azure Machine Learning and Alibaba's DLC."""

from nasflow.config.from_nni.request import Request, Section
from nasflow.config.secret.secret_url import without_passwords


def openpai(request: Request, section: Section) -> None:
    """Fill a section of kind openpai."""
    service = request.service
    key, host = service.key("host"), service.text("host")
    if host is not None:
        url = host if host.startswith(("http://", "https://")) else f"https://{host}"
        section.put(key, f"{without_passwords(url).rstrip('/')}/rest-server", "url", "host")
    _texts(request, section, (("username",), ("user", "username")), (("virtualCluster",), ("virtual_cluster",)))
    section.put(service.key("token"), service.secret("OPENPAI_TOKEN", "token"), "token")
    service.drop("jobs are sent with a token: make one on OpenPAI's profile page, and give it as `token`", "password")
    request.put_jobs(section)
    request.put_image(section)
    for home in request.homes():
        names = ("storageConfigName", "paiStorageConfigName")
        key, name = home.key(*names), home.text(*names)
        section.put(key, {"extras": {"storages": [{"name": name}]}} if name else None, "extra")
        local = home.text("localStorageMountPoint", "nniManagerNFSMountPath")
        remote = home.text("containerStorageMountPoint", "containerNFSMountPath")
        request.put_shared_folder(section, home.path or "trial", local, remote)
        text = "copy what is needed of it into `training_service.extra`, which is merged into each job's protocol"
        home.drop(text, "openpaiConfig", "openpaiConfigFile", "paiConfigPath")
        home.drop("see `training_service.extra`", "shmMB", "authFile", "portList")


def dlts(request: Request, section: Section) -> None:
    """Fill a section of kind dlts."""
    service = request.service
    key, dashboard = service.key("dashboard"), service.text("dashboard")
    section.put(key, without_passwords(dashboard) if dashboard else None, "url", "dashboard")
    _texts(
        request,
        section,
        (("cluster",), ("cluster",)),
        (("team",), ("team",)),
        (("email",), ("email", "user")),
        (("gpuType",), ("gpu_type",)),
    )
    section.put(service.key("password"), service.secret("DLTS_PASSWORD", "password"), "password", "token")
    request.put_jobs(section)
    request.put_image(section)


def azure_ml(request: Request, section: Section) -> None:
    """Fill a section of kind azureml."""
    _texts(
        request,
        section,
        (("subscriptionId",), ("subscription", "subscription_id")),
        (("resourceGroup",), ("resource_group",)),
        (("workspaceName",), ("workspace", "workspace_name")),
        (("computeTarget",), ("compute", "compute_target")),
    )
    request.put_jobs(section)
    request.put_image(section)
    request.service.drop(_SHARED_GPU, "maxTrialNumberPerGpu", "maxTrialNumPerGpu", "useActiveGpu")


def dlc(request: Request, section: Section) -> None:
    """Fill a section of kind dlc."""
    service = request.service
    _texts(
        request,
        section,
        (("region",), ("region",)),
        (("workspaceId",), ("workspace", "workspace_id")),
        (("ecsSpec",), ("ecs_spec", "spec", "instance_type")),
    )
    local, remote = service.text("localStorageMountPoint"), service.text("containerStorageMountPoint")
    named = [service.text("nasDataSourceId"), service.text("ossDataSourceId")]
    sources = [{"DataSourceId": source} for source in named if source]
    section.put(service.path, {"DataSources": sources} if sources else None, "extra")
    for name, variable, ours in (
        ("accessKeyId", "ALIBABA_CLOUD_ACCESS_KEY_ID", ("access_key_id", "access_key")),
        ("accessKeySecret", "ALIBABA_CLOUD_ACCESS_KEY_SECRET", ("access_key_secret", "secret")),
    ):
        section.put(service.key(name), service.secret(variable, name), *ours)
    request.put_shared_folder(section, service.path, local, remote)
    service.drop("not needed: a job of nasflow's is one worker", "type", "jobType", "podCount")
    request.put_jobs(section)
    request.put_image(section)


_SHARED_GPU = "the trials of a job share its GPU; `merge.max_members` says how many"


def _texts(request: Request, section: Section, *rows: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    """Put texts: NNI's names, and those that the section may have."""
    for names, ours in rows:
        home = request.where(*names)
        key = home.key(*names)
        section.put(key, home.text(*names), *ours)
