"""Inside the job: its program, its training loop, its members and what trains them together.

The rooms: a `member` is one trial, a `unit` steps several at once, `optim` holds their optimizers, and `schedule`
decides which members train in each epoch. Imports evaluators, `merge`, `checkpoint`, `job` and what is below them.
"""

from nasflow.system.scipy_signal import put_off

put_off()
