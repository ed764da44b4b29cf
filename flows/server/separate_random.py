"""Gives Prefect's client a separate random generator, so that it draws nothing from Python's global one.

Its connections to the server draw a number for each ping, every 20 seconds and in another thread. Jobs that run in this
process (`debug`) would then train otherwise than the same jobs elsewhere, and a notebook's own numbers would depend on
how long a search took.
"""

import random

import websockets.asyncio.connection
import websockets.client
from prefect.utilities import math

_generator = random.Random()

for _module in (websockets.asyncio.connection, websockets.client, math):
    if hasattr(_module, "random"):
        _module.random = _generator  # type: ignore[attr-defined]
