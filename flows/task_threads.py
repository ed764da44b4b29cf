"""The threads of the tasks of a flow."""

import sys
from typing import Any, cast

from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

UNLIMITED = cast(TaskRunner[PrefectFuture[Any]], ThreadPoolTaskRunner(max_workers=sys.maxsize))
"""As many threads as there are tasks, whatever Prefect's settings say.

The thread of a job waits for those of the jobs before it. With a limit, these might get no thread.
"""
