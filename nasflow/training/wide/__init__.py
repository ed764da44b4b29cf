"""One trial on several devices of a machine: a process for each, which Lightning's strategies keep together.

`job` and `trial` are in the job's own process, `ranks` starts the others, and the rest is in each of those.
Imports the program room, members, and what is below them.
"""
