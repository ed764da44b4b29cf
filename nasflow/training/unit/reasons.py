"""Why a member trains by itself: its own code does what a unit can't do for several."""

INNER_BACKWARD = "it runs a backward through the model in its step"
ENDS_EPOCH = "its on_train_batch_start ends an epoch early"
CHANGES = "it changes which parameters are trained, or puts other tensors in their place"
SETTINGS = "it changes its layers on the way, such as a mode, a buffer, or the rate of a dropout"
UNREACHED = "a layer of it uses its input in some steps only, so that its optimizer skips weights in the others"
STRIDES = "its hooks view weights as rows, and merged convolutions keep theirs channels last"
STAYS_TRAINING = "a layer of it stays in training mode in validation"
OWN_GRADIENTS = "a backward of its own may draw random numbers"  # merged, it does not run in the member's stream

IN_TRAINING = frozenset((INNER_BACKWARD, ENDS_EPOCH, CHANGES, SETTINGS, UNREACHED, STRIDES))
"""Those that show in steps and hooks."""


def views_as_rows(error: BaseException) -> bool:
    """Whether torch refuses to view a tensor in a shape that does not fit its strides, as those of merged weights."""
    return isinstance(error, RuntimeError) and "view size is not compatible" in str(error)
