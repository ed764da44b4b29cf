"""Single changes to the code, each for the worse."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Change:
    """A change.

    Attributes:
        file: its path in the repository.
        text: what is there, once.
        other: what takes its place.
    """

    name: str
    file: str
    text: str
    other: str

    def apply(self, root: Path) -> None:
        """Make the change.

        Raises:
            ValueError: the text is not there, or not once.
        """
        path = root / self.file
        whole = path.read_text()
        if (count := whole.count(self.text)) != 1:
            raise ValueError(f"{self.name}: {self.file} has its text {count} times instead of once; write it anew")
        path.write_text(whole.replace(self.text, self.other))


def _in(file: str, *changes: tuple[str, str, str]) -> list[Change]:
    return [Change(name, f"nasflow/{file}", text, other) for name, text, other in changes]


CHANGES = [
    *_in(
        "merge/tape/tape.py",
        ("a contribution overwrites the others", "spot.grad.add_(grad())", "spot.grad.copy_(grad())"),
        ("a first contribution is added to what was there", "spot.grad.copy_(grad())", "spot.grad.add_(grad())"),
        ("a parameter's second gradient is dropped", "self.do(memory.add_, contribution)", "pass"),
        (
            "a parameter's second gradient overwrites",
            "self.parameter_grads[parameter].add_(grad)",
            "self.parameter_grads[parameter].copy_(grad)",
        ),
        (
            "a parameter's stale gradient is kept",
            "self.parameter_grads[parameter].copy_(grad)",
            "self.parameter_grads[parameter].add_(grad)",
        ),
        ("a joined value gets the first run's gradient", "partial(run_of_grad, i)", "partial(run_of_grad, 0)"),
        ("joined rows are swapped", "place.copy_(spot.data)", "place.copy_(spot.data.flip(0))"),
    ),
    *_in(
        "merge/tape/tape_values.py",
        ("rows that nobody read keep a stale gradient", "row + 1).zero_()", "row + 1)"),
        ("half of a gradient is overwritten", "if not any(was):", "if not all(was):"),
        (
            "a moved value's gradient is in other rows",
            "whole.rows(start, start + self.count)",
            "whole.rows(0, self.count)",
        ),
        ("channels of another row", "tensor.narrow(1, start * channels,", "tensor.narrow(1, 0,"),
    ),
    *_in(
        "merge/tape/region.py",
        ("imports stay as they were recorded", "spot.data.copy_(value)", "pass"),
        ("an earlier gradient is ignored", "own[tensor] if earlier is None else own[tensor] + earlier", "own[tensor]"),
        ("an earlier gradient is not kept apart", "{tensor: grad.clone()", "{tensor: grad"),
        ("imports get no gradient", "spot.grad.clone() if any(spot.graded) else None", "None"),
        ("rows from the beginning of a value", "spot.rows(first - at, last - at)", "spot.rows(0, last - first)"),
    ),
    *_in(
        "merge/run/autograd_fallback.py",
        (
            "a nested kernel's parameter gradient is dropped",
            "tape.contribute_to_parameter(parameter, partial(found.__getitem__, place))",
            "pass",
        ),
        (
            "a nested kernel's input counts as its own memory",
            "fresh = len(inside) == 1 and _is_own(",
            "fresh = bool(inside) or _is_own(",
        ),
    ),
    *_in(
        "merge/values/layout.py",
        (
            "channels are dealt out row by row",
            "value.unflatten(1, (rows, -1)).transpose(0, 1)",
            "value.unflatten(1, (-1, rows)).movedim(2, 0)",
        ),
        (
            "runs are split backwards",
            "[size * channels for size in sizes]",
            "[size * channels for size in sizes[::-1]]",
        ),
        ("gradients of runs lie over each other", "place.copy_(grad)", "whole[:, : grad.shape[1]].copy_(grad)"),
        (
            "gradients of joined runs are swapped",
            "grads[0].split(ctx.sizes, 1)",
            "grads[0].flip(1).split(ctx.sizes, 1)",
        ),
    ),
    *_in(
        "merge/kernels/linear.py",
        ("linear: no bias gradient", "tape.write_parameter_grad(self.bias_NO, add_up)", "pass"),
        ("linear: an input gradient is not added", "adds=not x.claim(tape)", "adds=x.claim(tape) and False"),
        (
            "linear: the last run has no weight gradient",
            "in zip(runs, y.grad.split(sizes), memory.split(sizes), strict=True):",
            "in [*zip(runs, y.grad.split(sizes), memory.split(sizes), strict=True)][: max(1, len(runs) - 1)]:",
        ),
        (
            "linear: biases of a wide layer are swapped",
            "self.bias_NO.flatten()\n        wide",
            "self.bias_NO.flip(0).flatten()\n        wide",
        ),
    ),
    *_in(
        "merge/kernels/convolution.py",
        (
            "convolution: the output's gradient is swapped",
            "(dense_images(y.grad), channels_last",
            "(dense_images(y.grad.flip(1)), channels_last",
        ),
        (
            "convolution: the weight gradient of another input",
            "channels_last(x.data), weight, sizes",
            "channels_last(x.data.relu()), weight, sizes",
        ),
        ("convolution: groups of all rows in one", "self._groups in (1, self.rows)", "True"),
    ),
    *_in(
        "merge/kernels/norm.py",
        (
            "batch norm: running statistics stay",
            "(mean, variance)\n        rates",
            "(mean.clone(), variance.clone())\n        rates",
        ),
        ("batch norm: torch's own momentum", "rates = (self._momentum,", "rates = (0.1,"),
        ("batch norm: a frozen one trains", "self._frozen = not self._layer.training", "self._frozen = False"),
        (
            "batch norm: batches are not counted",
            "self._count.add_(1)\n            if by_batch:",
            "pass\n            if by_batch:",
        ),
        (
            "batch norm: channels of the first row",
            "channels = (start * size, stop * size)",
            "channels = (0, (stop - start) * size)",
        ),
        ("layer norm: no bias", "return y if self._bias is None else", "return y if True else"),
        ("layer norm: scales are swapped", "y * self._weight.view(places)", "y * self._weight.flip(0).view(places)"),
        ("group norm: groups over several members", "self._layer.num_groups * self.rows", "self._layer.num_groups"),
    ),
    *_in(
        "merge/kernels/pooling.py",
        ("pooling: padding always counts", "layer.count_include_pad,", "True,"),
        (
            "pooling: a maximum's gradient loses its sign",
            "indices_backward(grad, x,",
            "indices_backward(grad.abs(), x,",
        ),
    ),
    *_in(
        "merge/kernels/pointwise.py",
        (
            "pointwise: segments in another order",
            "size for _, size, _ in self._runs]",
            "size for _, size, _ in self._runs[::-1]]",
        ),
        ("pointwise: backward by the input", "value = y_run if name in _BY_OUTPUT else x_run", "value = x_run"),
        (
            "pointwise: input and output mixed up",
            "y if name in _BY_OUTPUT else x, out",
            "x if name in _BY_OUTPUT else y, out",
        ),
        ("pointwise: a gradient is not added", "adds = not x.claim(tape)\n", "adds = x.claim(tape) and False\n"),
    ),
    *_in(
        "merge/kernels/embedding.py",
        ("embedding: padding gets a gradient", "return y if self._padding is None else", "return y if True else"),
        ("embedding: all read the first table", "device=weight.device) * weight.shape[1]", "device=weight.device) * 0"),
    ),
    *_in(
        "merge/kernels/dropout.py",
        ("dropout: another member's probability", "bernoulli_(keep,", "bernoulli_(self._keep[-1],"),
        ("dropout: another member's stream", "self.bench.generators[member]", "self.bench.generators[row]"),
    ),
    *_in(
        "merge/kernels/attention.py",
        ("attention: no bias of the output", "_project(joined, *self._out)", "_project(joined, self._out[0], None)"),
    ),
    *_in(
        "merge/kernels/mapped.py",
        ("mapped: inputs are swapped", "(self._parameters, inputs[0])", "(self._parameters, inputs[0].flip(0))"),
    ),
    *_in(
        "merge/run/merged_model.py",
        ("a value that others read is overwritten", "and readers[source.batch] == 1", "and True"),
    ),
    *_in(
        "merge/values/parameter_stacks.py", ("members' tensors stay outside of the stack", "row.data = place", "pass")
    ),
    *_in(
        "merge/planning/passes/ties.py",
        ("tied layers are batched as if they were not", "if len(operations) < 2:", "if True:"),
    ),
    *_in(
        "native/kernels.c",
        (
            "native: products are not added",
            "sum[i] = adds ? load(out + i * out_line, columns) : start;",
            "sum[i] = start;",
        ),
        ("native: products skip the last line", "for (; i < m; i++)", "for (; i < m - 1; i++)"),
        ("native: sums skip an odd line", "if (m % 2) even +=", "if (0) even +="),
        ("native: a wrong gradient of GELU", "+ x * bell * 0.39894228f", "- x * bell * 0.39894228f"),
        ("native: a wrong gradient of tanh", "x * (1.0f - y * y)", "x * (1.0f - y)"),
        ("native: labels are not smoothed in the gradient", "* scale - even * share", "* scale"),
        ("native: a biased running variance", "squares[j] / (lines - 1)", "squares[j] / lines"),
        ("native: batch norm's variance has no gradient", "(g - even - centered * slope)", "(g - even)"),
        ("native: Adam does not decay weights", "load(parameters + at, left) * kept;", "load(parameters + at, left);"),
        ("native: Adam has the first row's rates", "*a = adams + row;", "*a = adams;"),
    ),
    *_in(
        "native/conv_1x1.py",
        ("pixels: only the last part has a weight gradient", "adds=number > 0", "adds=False"),
    ),
    *_in(
        "native/batch_norm.py",
        ("native: statistics of the first channels", "skipped = start * x.element_size()", "skipped = 0"),
    ),
    *_in(
        "training/optim/stacked.py",
        ("optimizers: steps are counted for all", "steps.add_(stepping)", "steps.add_(1)"),
        ("optimizers: former ages are lost", 'float(kept.get("step", 0)) if', "0.0 if"),
    ),
    *_in(
        "training/optim/parameter_rows.py",
        ("optimizers: rows out of step go together", "row.age if row.rule.in_step else None", "None"),
        (
            "optimizers: rows apart are not written back",
            "self.whole.index_copy_(0, self._positions, parameters)",
            "pass",
        ),
        ("optimizers: former states are lost", "view.copy_(row.kept[name])", "pass"),
    ),
    *_in(
        "training/optim/rules.py",
        (
            "weight decay of another row",
            "self._sweep.multiply(parameters, self._rates, decays)",
            "self._sweep.multiply(parameters, [rate.flip(0) for rate in self._rates], decays)",
        ),
        ("SGD: momentum is forgotten", "if self.next_step == 1:", "if self.next_step >= 1:"),
        (
            "SGD: Nesterov without the momentum's rate",
            "torch._foreach_addcmul_(grads, buffers, self._momenta)",
            "torch._foreach_add_(grads, buffers)",
        ),
        ("RMSprop: means are added", "means, means, value=-1)", "means, means, value=1)"),
        ("Adam: no correction of the means", "-lr / (1 - beta1**steps)", "-lr / (1 - beta1)"),
        (
            "AdamW: decay without the learning rate",
            'values(lambda group: group["lr"]) * sweep.values(',
            "values(lambda group: 1.0) * sweep.values(",
        ),
    ),
    *_in(
        "training/optim/native_adam.py",
        ("native Adam: ages are lost", "self._hyper[:, 5] = self.ages", "self._hyper[:, 5] = 0.0"),
    ),
    *_in(
        "training/optim/clip.py",
        ("clipping by the norm of all members", "/ (totals + 1e-6)", "/ (totals.norm() + 1e-6)"),
        ("clipping at the first row's value", "grad.clamp_(-limits, limits)", "grad.clamp_(-limits[0], limits[0])"),
    ),
    *_in(
        "evaluator/ready_made/group_losses.py",
        (
            "label smoothing of another member",
            "(1 - smoothing) * losses + smoothing * even",
            "(1 - smoothing.flip(0)) * losses + smoothing.flip(0) * even",
        ),
        ("losses in another order", "torch.cat(losses).index_select(0, places)", "torch.cat(losses)"),
    ),
    *_in(
        "training/unit/stacked_unit.py",
        ("own gradients of opaque modules are dropped", "stack.tensor.grad[row] += parameter.grad", "pass"),
    ),
    *_in(
        "training/unit/fused.py",
        (
            "gradients of the last step are kept",
            'None if the model has failed."""\n        self._clear_gradients(index)',
            'None if the model has failed."""',
        ),
    ),
    *_in(
        "training/member/rng.py",
        ("streams: torch's generator stands still", "self.generator.set_state(torch.get_rng_state())", "pass"),
        (
            "streams: Python's generator stands still",
            "self._python = python_random.get_state()\n        self._install",
            "self._install",
        ),
    ),
]
