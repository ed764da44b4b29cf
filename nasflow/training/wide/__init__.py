"""One trial on several devices: a process for each, which Lightning's strategies keep together.

`job` and `trial` are in the job's own process, `ranks` starts the others, and the rest is in each of those. The room
`nodes` is for processes on other machines, and `epochs` is what all of them save.
Imports the program room, members, and what is below them.
"""
