"""How one candidate is trained and scored: an evaluator turns a model into a LightningModule, and knows its data.

`supervised` is classification and regression, `lightning` a user's LightningModule; `make` builds the one of a config.
Imports `config`, `space` and leaves.
"""

from nasflow.system.scipy_signal import put_off

put_off()
