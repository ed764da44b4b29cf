"""An agent that also brings files of other trials and jobs, and files where folders belong."""

from pathlib import Path

from nasflow.training_service.ssh import agent
from nasflow.training_service.ssh.messages import JobNews, Known, RemoteFile

FILES = [
    "trials/00007/epoch-0009",
    "trials/00000",
    "trials/x",
    "trials/00000/notes.txt",
    "jobs/other/own-code",
    "jobs/job",
    "jobs/job/exit.json",
    "jobs/job/folder/file",
    "jobs/job/..",
    "jobs/job/\0",
    "jobs/job/" + "x" * 300,
]


class HostileAgent(agent.HostAgent):
    """Adds to its news what was not asked for."""

    def _news(self, job_id: str, known: Known, share: int) -> JobNews | None:
        news = super()._news(job_id, known, share)
        if news is None:
            return None
        (self._root / "payload").touch()
        there = Path("..", "..", self._root.name, "payload")
        more = [RemoteFile(path=path, size=0, inode=-number) for number, path in enumerate(FILES, 1)]
        more.append(RemoteFile(path=str(there), size=0, inode=0))
        return news.model_copy(update={"checkpoints": [*news.checkpoints, *more], "files": [*news.files, *more]})


if __name__ == "__main__":
    agent.HostAgent = HostileAgent
    agent.main()
