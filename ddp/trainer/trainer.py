"""`Trainer`: checks everything that a run needs, before anything starts."""

from __future__ import annotations

import inspect
import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ddp import settings as checks
from ddp.core.policies import DEFAULT
from ddp.core.settings.loader import Loading
from ddp.core.settings.steps import StepSettings
from ddp.data.augment import Augment
from ddp.data.dataset import Collate, as_source
from ddp.data.epoch_order import EpochOrder, Sampler, refuse_part
from ddp.engine import ENGINES
from ddp.engine.loop import device_of_rank
from ddp.monitor.track import RunSubject
from ddp.process import forkserver
from ddp.registries import member
from ddp.replica.handle import WorkerHandle
from ddp.replica.optim.learning_rates import a_schedule
from ddp.replica.task import Job, epoch_samples, whole_batches
from ddp.trainer import arguments, launched
from ddp.trainer.handle import RunHandle
from ddp.trainer.model_trial import sketch
from ddp.trainer.observers import RunObservers
from ddp.trainer.recording import RecordOrder, check_recording, make_recorder
from ddp.trainer.state import CheckpointInfo
from ddp.trainer.task import NoSamples, Parts, make_task, pack


class Trainer:
    """Trains a model on several devices of equal or unequal speed, or on one device in this process.

    Args:
        model_factory: function that makes a new model, on the CPU. It is called once in every rank, and with `output` before
            in this process; all ranks get the same initial values, because torch is seeded from `seed`.
        optimizer_factory: list of parameters -> optimizer, or a list of optimizers that share no parameter. Their learning
            rates are those where `schedule` is 1.
        train_step: (model, batch) -> mean loss over the batch, a scalar tensor. May call `ddp.record_scalar`.
        dataset: a tensor or a tuple of tensors of equal length, a TensorDataset, any map-style Dataset (`default_collate`
            makes the batches), or a `ddp.replica.task.Source`. Batches arrive on the rank's device.
        batch_size: samples of one rank's step; with `accumulate`, samples of one micro-batch.
        epochs: passes over the data, all ranks together; None: 1, with `steps`.
        steps: length of the run in global steps (one batch of every rank), instead of passes over the data. Must be a
            multiple of `epochs`, which then are equal parts of the run.
        policy: when replicas are averaged, a key of `ddp.core.policies.POLICIES`; None: `cadence`.
        backend: how replicas are averaged: `nccl` (all ranks wait in an all-reduce: NCCL, gloo or shared memory), or `cpu`
            (the parent process averages copies while ranks may continue to train); None: `nccl`.
        world_size: number of ranks. None: the number that torchrun, srun or mpirun has started, or one for each CUDA
            device. A single rank trains in this process.
        seed: seed of every random number.
        eval_step: (model, batch) -> mean metric over the batch, or (mean loss, mean metric). It is called at the end of
            every epoch in evaluation mode without gradients. Needs `eval_dataset`.
        eval_dataset: evaluation data, of the same types as `dataset`.
        eval_batch_size: samples in one call of `eval_step`.
        schedule: fraction of all training samples seen by all ranks, in [0, 1] -> factor on the learning rates.
        lr_scale_ratio: learning rates are multiplied by 1 + lr_scale_ratio * (world_size - 1).
        max_grad_norm: limit of the L2 norm of a step's gradients; None: no limit.
        accumulate: micro-batches in one step of a rank; their gradients are accumulated.
        precision: `fp32`, or `bf16` or `fp16` for training under torch.autocast.
        compile: train the model through torch.compile.
        deterministic: make PyTorch use deterministic algorithms, and raise an error where it has none.
        augment: (batch, `ddp.Draws`) -> batch, for training only. Random numbers depend on (seed, epoch, sample), so a
            sample is augmented in the same way on every rank, in every batch and mode. Example: `ddp.crop_and_flip(4)`.
        sampler: order of the samples in an epoch, instead of a permutation of all samples: a function of the epoch, or a
            PyTorch sampler. Every rank calls it. All epochs must have the same number of samples.
        drop_last: drop the samples at the end of an epoch that do not fill a batch on every rank.
        collate_fn: list of samples -> batch, instead of `default_collate`; for both data sets.
        loader: `resident` (the data is on each rank's device), `streaming` (a thread prefetches batches), or `auto` (each
            rank chooses by its free memory). See `docs/reference/loader.md`.
        prefetch: number of batches that a streaming loader prefetches; None: as many as memory allows.
        vram_max_usage, memory_max_usage: fraction of the free GPU memory and of the free host memory that data may use.
        epoch_callback: (epoch, WorkerHandle) -> None, called in every rank before it reads the data of an epoch.
        checkpoint_folder: folder in which the last two checkpoints are kept; None: no checkpoints.
        checkpoint_every: epochs or averages between checkpoints; None: 1. No checkpoint is saved at the end of the run.
        checkpoint_unit: `epochs` (None) or `averages`. In modes that average gradients, and with one rank, every step
            counts as an average.
        checkpoint_callback: (CheckpointInfo) -> None, called for each checkpoint in a thread of this process. An exception
            in it ends the run. Until it returns, the coordinator is blocked and ranks wait after the steps that they were
            granted; do long work in another thread.
        resume: a checkpoint, or a folder with checkpoints, to resume from; the other arguments must be unchanged.
        speeds: emulated relative speed of each rank, in [0.01, 1]; empty: full speed.
        device: `cpu`, `cuda`, or `auto`: CUDA if there is a GPU for each rank.
        transport: transport of the collectives of backend `nccl`: `memory` or `gloo` on CPUs, `nccl`, or `auto`.
        deadline_s: seconds after which a silent rank counts as dead; no step, evaluation batch or callback may take longer.
        tolerate_loss: if a rank's process dies, the other ranks train its remaining samples; False: the run fails.
        faults: faults to inject, such as `1@40:crash`, which kills rank 1 before its step 40. The kinds are listed in
            `docs/reference/faults.md`.
        output: root of the run folders, `<output>/<name>/<mode>/<run_id>/`, in the format of `python -m bench`; None: no
            run folder. Needs the package `bench`.
        name: name of the model in run folders.
        metric: name of the metric that `eval_step` returns, such as `accuracy`.
        higher_is_better: whether a larger metric is better; only for run folders.
        target: value of the metric to reach; None: no target; only for run folders.
        audit: record some steps of a run with `output`, and repeat them in plain PyTorch at the end.
        mode: any mode (`docs/reference/modes.md`), instead of policy and backend: `solo`, `graph_sync`, `zero3`, ...
        timeline: a `ddp.Timeline`, or a function (record, time in seconds) -> None.
        settings: settings of the policy (`python -m bench list policies`): anchor, max_anchor, overhead_target, ...

    Raises ValueError that says how to correct the argument.
    """

    def __init__(
        self,
        model_factory: Callable[[], nn.Module],
        optimizer_factory: Callable[[list[nn.Parameter]], Any],
        train_step: Callable[[nn.Module, Any], Tensor],
        dataset: Any,
        *,
        batch_size: int,
        epochs: int | None = None,
        steps: int | None = None,
        policy: str | None = None,
        backend: str | None = None,
        world_size: int | None = None,
        seed: int = 0,
        eval_step: Callable[[nn.Module, Any], Any] | None = None,
        eval_dataset: Any = None,
        eval_batch_size: int = 500,
        schedule: Callable[[float], float] | None = None,
        lr_scale_ratio: float = 1.0,
        max_grad_norm: float | None = None,
        accumulate: int = 1,
        precision: str = "fp32",
        compile: bool = False,
        deterministic: bool = False,
        augment: Augment | None = None,
        sampler: Sampler | None = None,
        drop_last: bool = False,
        collate_fn: Collate | None = None,
        loader: str = "auto",
        prefetch: int | None = None,
        vram_max_usage: float = Loading.vram_max_usage,
        memory_max_usage: float = Loading.memory_max_usage,
        epoch_callback: Callable[[int, WorkerHandle], None] | None = None,
        checkpoint_folder: str | Path | None = None,
        checkpoint_every: int | None = None,
        checkpoint_unit: str | None = None,
        checkpoint_callback: Callable[[CheckpointInfo], None] | None = None,
        resume: str | Path | None = None,
        speeds: Sequence[float] = (),
        device: str = "auto",
        transport: str = "auto",
        deadline_s: float = 60.0,
        tolerate_loss: bool = True,
        faults: Sequence[str] = (),
        output: str | Path | None = None,
        name: str | None = None,
        metric: str = "metric",
        higher_is_better: bool = True,
        target: float | None = None,
        audit: bool = True,
        mode: str | None = None,
        timeline: Callable[[Any, float], None] | None = None,
        **settings: Any,
    ) -> None:
        if (eval_step is None) != (eval_dataset is None):
            raise ValueError("eval_step and eval_dataset need each other: give both, or neither")
        gpus = arguments.gpus_for(checks.known("device", device, checks.DEVICES))
        way = self._mode = arguments.mode_for(mode, policy, backend)
        party = self._party = launched.party()
        size = arguments.world_size_of(world_size, gpus, device, way, None if party is None else party.placement)
        beside = size if party is None else party.placement.host_ranks
        remedy = "0 leaves the learning rate as it is"
        step = StepSettings(accumulate, precision, compile, deterministic)
        epochs = arguments.epochs_of(epochs, steps)
        ratio = checks.number("lr_scale_ratio", lr_scale_ratio, 0.0, checks.HIGHEST_RATE, remedy=remedy)
        self._parts = Parts(
            model_factory=model_factory,
            optimizer_factory=optimizer_factory,
            train_step=train_step,
            dataset=as_source(dataset, collate_fn),
            eval_step=eval_step,
            eval_dataset=NoSamples() if eval_dataset is None else as_source(eval_dataset, collate_fn),
            eval_batch_size=checks.whole("eval_batch_size", eval_batch_size, 1, checks.MOST_SAMPLES),
            schedule=None if schedule is None else a_schedule(schedule),
            epoch_callback=epoch_callback,
            augment=augment,
            sampler=sampler,
            drop_last=checks.flag("drop_last", drop_last),
            collate_fn=collate_fn,
        )
        arguments.check_functions(self._parts)
        arguments.check_settings(way, settings, set(inspect.signature(Trainer).parameters) - {"settings"})
        self._job = Job(
            task=partial(make_task, self._parts),
            epochs=epochs,
            batch_size=checks.whole("batch_size", batch_size, 1, checks.MOST_SAMPLES) * step.accumulate,
            step=step,
            steps=checks.run_steps("steps", steps, epochs),
            seed=checks.whole("seed", seed, 0, 2**31 - 1),
            world_size=size,
            policy=checks.make_policy(way.policy or DEFAULT, {**way.settings, **settings}),
            backend=way.backend or arguments.BACKEND,
            loading=arguments.check_loading(
                Loading(loader, prefetch, vram_max_usage, memory_max_usage),
                self._parts.dataset,
                self._parts.eval_dataset,
            ),
            scratch=Path(),  # made for each run
            device=device,
            transport=checks.check_transport(transport, device, gpus, beside),
            speeds=checks.emulated("speeds", speeds, size),
            lr_scale=1.0 + ratio * (size - 1),
            max_grad_norm=checks.norm_limit("max_grad_norm", max_grad_norm),
            deadline_s=checks.number("deadline_s", deadline_s, 0.1, checks.DAY_S),
            tolerate_loss=checks.flag("tolerate_loss", tolerate_loss),
            faults=checks.script(faults, size),
            keep_state=True,
            preload=("ddp.trainer.task",),
            checkpoints=arguments.checkpointing(
                checkpoint_folder, checkpoint_every, checkpoint_unit, checkpoint_callback
            ),
            checkpoint_folder=arguments.folder_of("checkpoint_folder", checkpoint_folder),
        )
        checks.check_policy(self._job.policy, size)
        self._recording = check_recording(output, name, metric, higher_is_better, target, audit)
        self._callback, self._ratio, self._metric, self._timeline = checkpoint_callback, ratio, metric, timeline
        if timeline is not None:
            checks.function("timeline", timeline)
        arguments.check_mode(way, self._job)
        # Refuse here, not in the ranks, a sampler or drop_last that leaves too few samples.
        refuse_part(sampler)
        cut, length = whole_batches(self._parts.drop_last, self._job), epoch_samples(self._job)
        visits = EpochOrder(seed, len(self._parts.dataset), sampler, cut, length=length)
        checks.check_reach(self._job.faults, len(visits), epochs, self._job.batch_size, size, alike=way.alike)
        earlier = arguments.folder_of("resume", resume)
        if earlier is not None and (party is None or party.leads):  # other processes receive the checkpoint from rank 0
            self._job = replace(self._job, resume=arguments.latest_checkpoint(earlier))
            arguments.check_data(self._job, self._parts)
        launched.number(self._parts)  # a Trainer that was refused, perhaps in rank 0 alone, has none

    def run(self) -> RunHandle:
        """Start training and return. Each further call starts a new run. With `output`, two samples are tried here first, to
        warn of a loss that is a sum. Under torchrun, srun or mpirun, only rank 0's process returns; the others
        serve its runs until it exits: make every `Trainer` before the first run.

        Raises ValueError if the functions or data cannot be sent to the ranks' processes; RuntimeError in a process that
        may not start others (such as a rank), or while another run trains in this process.
        """
        if self._party is not None and not self._party.leads:
            self._party.serve(self._parts)
        job, in_place = self._job, self._job.world_size == 1 or ENGINES[self._mode.engine].in_place
        _refuse_in_a_rank(job.world_size if not in_place else 1)
        devices = [str(device_of_rank(job, rank)) for rank in range(job.world_size)]
        if self._party is not None and not in_place:
            self._party.settle()  # before ranks inherit the environment
        packed = None if in_place else pack(self._parts)  # before data is read: open files cannot be pickled
        recorder = None
        if self._recording is not None:
            recorder = make_recorder(RecordOrder(self._recording, self._parts, job, self._mode, self._ratio))
            job = replace(job, preload=recorder.preload)
        engine = member("engine", self._mode.engine, ENGINES[self._mode.engine].module, "run")
        names = (self._mode.name, self._metric)
        traced = partial(sketch, self._parts, self._metric)
        seen = RunObservers(self._subject(devices), traced, self._timeline, in_place)
        if not in_place:
            forkserver.warm(job.preload)  # in this thread, where Ctrl-C can be masked
            if self._party is not None:
                job = replace(job, elsewhere=self._party.provide(self._parts))
        handle = RunHandle(job, engine, packed, devices, self._callback, recorder, names, observers=seen)
        return handle if self._party is None else self._party.followed(handle)

    def _subject(self, devices: list[str]) -> RunSubject:
        """Return the description of the run for timelines and monitors."""
        job, way = self._job, self._mode
        name = self._recording.name if self._recording is not None else _word(self._parts.model_factory)
        parts = job.step.accumulate
        settings: dict[str, Any] = {"batch_size": job.batch_size // parts, "seed": job.seed}
        settings |= {"accumulate": parts} if parts > 1 else {}
        settings |= {"samples": len(self._parts.dataset), "metric": self._metric}
        return RunSubject(
            name, way.name, tuple(devices), way.engine, way.policy, way.backend, job.epochs, job.speeds, settings
        )


def _word(factory: Any) -> str:
    """Return a name for what `factory` makes; "model" for a lambda."""
    name = str(getattr(factory, "__name__", type(factory).__name__))
    return "model" if name.startswith("<") else name


def _refuse_in_a_rank(world_size: int) -> None:
    process = multiprocessing.current_process()
    if process.daemon and process.name.startswith("rank-"):
        raise RuntimeError(
            "training was started inside a rank of another run: a module that the model, the step or the data need starts "
            "training when it is imported; put that under `if __name__ == '__main__':`"
        )
    if process.daemon and world_size > 1:
        raise RuntimeError("a daemonic process may not start the ranks' processes; train from the main process")
