"""The `evaluator` section of the search config: how a candidate is trained and scored."""

from typing import Annotated

from pydantic import Field

from nasflow.config.evaluator.own import CustomEvaluatorConfig, LightningConfig
from nasflow.config.evaluator.program import CommandConfig, FunctionConfig
from nasflow.config.evaluator.supervised import ClassificationConfig, RegressionConfig

# if all keys of one kind are keys of another, a form takes the first
EvaluatorConfig = Annotated[
    RegressionConfig | ClassificationConfig | LightningConfig | FunctionConfig | CommandConfig | CustomEvaluatorConfig,
    Field(discriminator="kind"),
]
"""The section of any evaluator, chosen by `kind`."""
