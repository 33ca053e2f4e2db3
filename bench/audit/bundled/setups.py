"""Compares the bundled set-ups, their modules, optimizer, schedule and what they compute, with a committed description.

    python -m bench.audit.bundled.setups    # writes `setups.json`

A run and its audit call the same set-up, so both have its errors: a lost weight decay, another epsilon, doubled
dropout. Must not use the engine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isclose
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bench.audit.audit_input import AuditOrder
from bench.audit.bundled.derivative import slope
from bench.audit.repeated.repeated_step import several
from bench.base.writing import write_text
from bench.models import MODELS, load
from bench.models.data import DATA, DataOptions, DataSet, data_set
from bench.models.parts import SCHEDULES
from bench.results.audit_file import AuditItem
from ddp.replica.scalars import Scalars
from ddp.replica.task import Task

SETUPS = Path(__file__).with_name("setups.json")
OF_MODULES = (
    *("p", "eps", "momentum", "affine", "track_running_stats", "kernel_size", "stride", "padding", "dilation"),
    *("groups", "ceil_mode", "negative_slope", "approximate", "bidirectional", "num_layers", "batch_first", "inplace"),
)
"""Attributes of modules that, besides their classes, determine what they compute."""
OF_OPTIMIZERS = ("weight_decay", "momentum", "dampening", "nesterov", "betas", "eps", "amsgrad", "maximize", "alpha")
"""Settings of a parameter group, except for its learning rate."""
SAMPLES, DRAWS, POINTS = 8, 16, 20
NEAR, TINY, LOOSE = 1e-3, 1e-5, 0.1
"""Relative and absolute tolerance of computed figures; and relative tolerance of a figure with random numbers."""
GRADIENT, DEVIATIONS = 1e-2, 5.0
"""Relative tolerance of gradient norms; and tolerance of the sizes of initial values, in standard deviations."""


def key(model: str, data: str, sample: Tensor, depth: object) -> str:
    """Return the name of a set-up in the table, with the shape of a sample of its data."""
    shape = "x".join(map(str, sample.shape))  # empty for one number, as of an identifier
    what = shape if sample.is_floating_point() else f"text of {shape}"
    return f"{model} on {data}, {what}" + (f", depth {depth}" if depth else "")


def described(task: Task, sample: Tensor) -> dict[str, Any]:
    """Return a description of a task's model and optimizer; its figures use chosen parameters and samples."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = task.model()
        made = task.optimizer(list(model.parameters()))
        about: dict[str, Any] = {"modules": _modules(model), "optimizer": _optimizer(made), "initial": _initial(model)}
        about["figures"] = _figures(task, model, sample)
        about["gradients"] = _gradients(task, model, sample)
        about["dropout"] = _dropout(model, sample)
        inputs, targets = (part[: SAMPLES // 2] for part in _batch(sample))
        return about | {"training": slope(task, model, (inputs, targets))}


def _modules(model: nn.Module) -> str:
    lines = [
        f"{name} {tuple(parameter.shape)}" + ("" if parameter.requires_grad else " frozen")
        for name, parameter in model.named_parameters()
    ]
    for name, module in model.named_modules():
        about = {each: getattr(module, each) for each in OF_MODULES if hasattr(module, each)}
        lines.append(f"{name} {type(module).__name__} {sorted(about.items())}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _optimizer(made: Any) -> str:
    texts = []
    for part in several(made):
        for group in part.param_groups:
            about = ", ".join(f"{name}={group[name]}" for name in OF_OPTIMIZERS if name in group)
            texts.append(f"{type(part).__name__}({len(group['params'])} parameters, {about})")
    return "; ".join(texts)


def _initial(model: nn.Module) -> str:
    """Return the number of values and the root mean square of each initial parameter."""
    squares = [(parameter.numel(), parameter.detach().double().square().mean()) for parameter in model.parameters()]
    return ", ".join(f"{count} {float(square) ** 0.5:.4g}" for count, square in squares)


def _gradients(task: Task, model: nn.Module, sample: Tensor) -> str:
    """Return the norm of the loss's gradient for each parameter; 0 if it has none."""
    model.eval()
    with Scalars(), torch.enable_grad():
        task.loss(model, _batch(sample)).backward()  # type: ignore[no-untyped-call]
    own = [torch.zeros(()) if parameter.grad is None else parameter.grad for parameter in model.parameters()]
    return ", ".join(f"{float(torch.linalg.vector_norm(gradient.double())):.5g}" for gradient in own)


class _DropoutCalls(TorchFunctionMode):
    """Records the probabilities of functional dropout, such as that of attention, which has no module for it."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record the probability and call `function`."""
        given, name = kwargs or {}, {"dropout": "p", "scaled_dot_product_attention": "dropout_p"}
        rate = given.get(name.get(getattr(function, "__name__", "")))
        self.rates += [] if rate is None else [f"{rate * given.get('training', True):g}"]
        return function(*args, **given)


@torch.no_grad()
def _dropout(model: nn.Module, sample: Tensor) -> str:
    """Return the probabilities of dropout in a forward pass in training mode, in order."""
    model.train()
    with _DropoutCalls() as calls:
        model(_batch(sample)[0])
    return ", ".join(calls.rates)


@torch.no_grad()
def _figures(task: Task, model: nn.Module, sample: Tensor) -> dict[str, float]:
    """Return figures of the model's outputs, loss and metric. `by chance`: standard deviation of the outputs in
    training mode, which dropout causes."""
    for number, (name, parameter) in enumerate(model.named_parameters()):
        wave = torch.sin(torch.arange(parameter.numel(), dtype=torch.float64) * 0.7 + number).view(parameter.shape)
        if parameter.dim() > 1:
            wave = wave / max(parameter[0].numel(), 1) ** 0.5
        else:
            wave = wave / 10 + float(name.endswith("weight"))
        parameter.copy_(wave)
    batch = _batch(sample)
    model.eval()
    outputs = model(batch[0]).double()
    with Scalars():
        figures = {"outputs": float(outputs.mean()), "outputs, sd": float(outputs.std())}
        figures["loss"] = float(task.loss(model, batch))
        loss, metric = task.evaluate(model, batch)
        figures |= {"evaluated loss": float(loss), "evaluated metric": float(metric)}
        model.train()
        drawn = torch.stack([model(batch[0]).double() for _ in range(DRAWS)])
        figures["by chance"] = float(drawn.var(0).mean().sqrt())
    return figures


def _batch(sample: Tensor) -> tuple[Tensor, Tensor]:
    places = torch.arange(SAMPLES * sample.numel())
    if sample.is_floating_point():
        images = torch.sin(places.double() * 0.3).to(sample.dtype).view(SAMPLES, *sample.shape)
        return images, torch.arange(SAMPLES) % 2
    tokens = (places * places // 3 % 7).view(SAMPLES, -1)
    return tokens, tokens.roll(-1, 1)


def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(SETUPS.read_text(encoding="utf-8")) if SETUPS.exists() else {}
    return table


def scheduled(schedule: Any) -> list[float]:
    """Return the factors of a schedule at equal distances."""
    return [float(schedule(point / POINTS)) for point in range(POINTS + 1)]


def setup(order: AuditOrder, task: Task, sample: Tensor | None) -> Iterator[AuditItem]:
    """Compare the set-up and the schedule of a run with the committed description, if there is one."""
    table = _table()
    lines = []
    if (factors := table.get(f"schedule {order.schedule}")) is not None:
        for point, (own, known) in enumerate(zip(scheduled(task.schedule), factors, strict=True)):
            if not isclose(own, known, rel_tol=TINY, abs_tol=TINY):
                lines.append(f"schedule {order.schedule} gives {own:.6g} at {point / POINTS:g}, committed: {known:.6g}")
    entry = None if sample is None else table.get(key(order.model, order.data, sample, order.depth))
    entry = table[entry] if isinstance(entry, str) else entry  # the same as with another data set
    if entry is not None and sample is not None:
        lines += _apart(described(task, sample), entry)
    if entry is None and factors is None:
        return
    for line in lines[:1]:
        yield AuditItem(what="setup", outcome="different", line=line)
    if not lines:
        yield AuditItem(what="setup", outcome="equal")


def settings_reached(order: AuditOrder, task: Task, samples: int) -> Iterator[AuditItem]:
    """Compare the model, optimizer and data set of a bundled set-up with the run's settings: learning rate, layers,
    `samples`."""
    if not order.model:
        return
    model = task.model()
    made = several(task.optimizer(list(model.parameters())))
    rates = {float(group["lr"]) for each in made for group in each.param_groups}
    lines = [
        f"the optimizer's learning rate is {rate:.6g}, but {order.lr:.6g} is set"
        for rate in sorted(rates)
        if order.lr is not None and not isclose(rate, order.lr, rel_tol=1e-9)
    ]
    if order.depth is not None and (layers := _layers(model)) != order.depth:
        lines.append(f"the model has {layers} layers, but depth {order.depth} is set")
    if order.samples is not None and samples != order.samples:
        lines.append(f"the data set has {samples} training samples, but {order.samples} are set")
    measure = _table().get(f"measure of {order.model}, {order.recipe}")
    if None not in (measure, order.measure) and list(order.measure or ()) != measure:
        lines.append(
            f"metric, whether higher is better, and target are {list(order.measure or ())}, committed: {measure}"
        )
    for line in lines[:1]:
        yield AuditItem(what="setup", outcome="different", line=line)


def _layers(model: nn.Module) -> int:
    """Return the number of layers with weights, without those of shortcuts, as papers on residual networks count."""
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    own = [module for module in convolutions if module.kernel_size != (1, 1)]
    return len(own) + sum(isinstance(module, nn.Linear) for module in model.modules())


def _apart(own: Mapping[str, Any], known: Mapping[str, Any]) -> list[str]:
    parts = [part for part in ("optimizer", "modules", "dropout") if own[part] != known[part]]
    lines = [f"the {part} is {own[part]}, committed: {known[part]}" for part in parts]
    for name, value in known["figures"].items():
        near = LOOSE if name == "by chance" else NEAR
        if not isclose(own["figures"][name], value, rel_tol=near, abs_tol=TINY):
            lines.append(f"of chosen parameters, {name} is {own['figures'][name]:.6g}, committed: {value:.6g}")
    return lines or list(_values_apart(own, known))


def _values_apart(own: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[str]:
    """Name the parameters whose initial values or gradients differ from the committed ones."""
    for number, (begun, committed) in enumerate(_both(own["initial"], known["initial"])):
        count, size = committed
        # The root mean square of random values varies by chance.
        if not abs(begun[-1] - size) <= DEVIATIONS / (2 * count) ** 0.5 * size:
            yield f"parameter {number} is initialized with RMS {begun[-1]:.4g}, committed: {size:.4g}"
    gradients = list(_both(own["gradients"], known["gradients"]))
    least = TINY * max(size for _, (size,) in gradients)
    for number, ((gradient,), (size,)) in enumerate(gradients):
        if not isclose(gradient, size, rel_tol=GRADIENT, abs_tol=least):
            yield f"of chosen parameters, number {number} has a gradient of {gradient:.4g}, committed: {size:.4g}"
    for name, value in known["training"].items():
        near = LOOSE if known["figures"]["by chance"] > TINY else NEAR
        if not isclose(own["training"][name], value, rel_tol=near, abs_tol=NEAR / 10):
            yield f"of chosen parameters in training, the {name} is {own['training'][name]:.6g}, committed: {value:.6g}"


def _both(own: str, known: str) -> Iterator[tuple[list[float], list[float]]]:
    texts = zip(own.split(", "), known.split(", "), strict=True)
    return (([*map(float, first.split())], [*map(float, second.split())]) for first, second in texts)


def made() -> dict[str, Any]:
    """Return the table of all bundled set-ups, on data like those of their recipes, and of all schedules."""
    table: dict[str, Any] = {f"schedule {name}": scheduled(schedule) for name, schedule in SCHEDULES.items()}
    for name in MODELS:
        for which, recipe in load(name).recipes.items():
            table[f"measure of {name}, {which}"] = [load(name).metric, load(name).higher_is_better, recipe.target]
            data = data_set(recipe.data, options=recipe.data_options)
            sample = torch.zeros(data.shape, dtype=torch.int64 if data.is_text else torch.float32)
            own = key(name, recipe.data, sample, recipe.depth)
            table[own] = described(load(name).task(recipe, "data"), sample)
            options = DataOptions(seq_len=data.shape[0] if data.is_text else None)
            for other in _like(data, options) - {recipe.data}:  # for example with another scale of pixels
                about = described(load(name).task(replace(recipe, data=other, data_options=options), "data"), sample)
                table[key(name, other, sample, recipe.depth)] = own if about == table[own] else about
    return table


def _like(data: DataSet, options: DataOptions) -> set[str]:
    """Return the bundled data sets whose samples have the same shape."""
    names = [name for name in DATA if not {"path", "classes"} & {*DATA[name].options}]
    sets = {
        name: data_set(name, options=options) for name in names if data.is_text == ("seq_len" in DATA[name].options)
    }
    return {name for name, each in sets.items() if each.shape == data.shape}


def main() -> None:
    """Write the table."""
    torch.set_num_threads(1)
    write_text(SETUPS, json.dumps(made(), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
