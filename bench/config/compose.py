"""From a command line to composed configurations, one for each point of a sweep. The only module that starts Hydra.

Hydra composes and enumerates; what Hydra or omegaconf refuses becomes a UsageError in our words
(`bench.config.hydra_errors`), and so does a sweep that has no run in it.

A sweep over world sizes is a product, in which engines of one rank meet sizes that they cannot have. These points are left
out, with a line on each; where one size is asked for, it is the user's mistake (`EngineSpec.fits`).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from hydra import compose as hydra_compose
from hydra import initialize_config_dir, version
from hydra._internal.utils import _run_hydra, get_args_parser
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.plugins.sweeper import Sweeper
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bench.base.paths import CONF
from bench.base.usage import UsageError
from bench.config.config import register
from bench.config.hydra_errors import beyond, complain, nameless, names_several
from bench.config.overrides import in_our_words, readable
from ddp.engine.modes import engine_of
from ddp.process.scratch import scratch
from ddp.suggest import unknown


def compose(
    arguments: list[str],
    verbs: tuple[str, ...],
    job: Callable[[DictConfig], None],
    leave_out: Callable[[str], None],
    ahead: bool = True,
) -> None:
    """Have Hydra compose every cell that `arguments` ask for, and call `job` with each; `leave_out` with a line on each
    point of a sweep that is no run. Raise UsageError, also for a sweep without a run.

    `ahead`: compose all points before the first job as well, so that a bad one is refused before anything is trained. It
    takes as long again (0.1 s a point): leave it out where jobs train nothing, or where all is known to compose."""
    register()
    version.setbase("1.3")
    parser = get_args_parser()
    arguments = [in_our_words(word) for word in arguments]
    options = _read_flags(parser, arguments)
    options.overrides = [readable(override) for override in options.overrides]
    overrides, jobs, others = tuple(options.overrides), 0, 0

    def point(composed: DictConfig) -> None:
        nonlocal jobs, others
        hydra = HydraConfig.get()
        swept = hydra.mode is RunMode.MULTIRUN
        why = left_out_reason(composed, overrides, hydra.sweeper.params or {}) if swept else None
        if why is None:
            jobs += 1
            job(composed)
        else:
            others += 1
            leave_out(f"{' '.join(hydra.overrides.task)}: left out: {why}")

    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra is to raise, not to print and exit
    with scratch() as folder:
        OmegaConf.register_new_resolver("hydra_scratch", lambda: str(folder), replace=True)
        try:
            for problem in filter(None, (beyond(override) or nameless(override) for override in overrides)):
                raise UsageError(problem)
            with nullcontext() if ahead else _as_they_come():
                _run_hydra(options, parser, point, str(CONF), "config")
            if not jobs and not (options.cfg or options.info or options.shell_completion):
                raise UsageError("nothing to run: all of the sweep is left out" if others else _emptiness(overrides))
        except (HydraException, OmegaConfBaseException) as error:
            raise UsageError(complain(_beneath(error, overrides), verbs)) from error


@contextmanager
def _as_they_come() -> Iterator[None]:
    """Have Hydra's sweeper compose a point right before its job only. It has no setting for that."""
    original = Sweeper.validate_batch_is_legal
    Sweeper.validate_batch_is_legal = lambda self, batch: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Sweeper.validate_batch_is_legal = original  # type: ignore[method-assign]


@contextmanager
def composing(conf: Path = CONF) -> Iterator[Callable[[list[str]], DictConfig]]:
    """Yield what composes overrides, with Hydra's own settings, and runs nothing. Raise UsageError."""
    register()
    try:
        with initialize_config_dir(str(conf.resolve()), version_base="1.3"):
            yield lambda overrides: hydra_compose("config", overrides=overrides, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(complain(error)) from error


def _emptiness(overrides: tuple[str, ...]) -> str:
    """Say which part of a sweep without a point has no values."""
    experiment = [override for override in overrides if override.startswith("experiment=")]
    with composing() as composed:
        params = composed(experiment).hydra.sweeper.params or {}
        parts = empty(overrides, params, GlobalHydra.instance().config_loader())
    return f"nothing to run: no values in {', '.join(parts)}" if parts else "nothing to run: the sweep is empty"


def _beneath(error: Exception, overrides: tuple[str, ...]) -> Exception:
    """Return what keeps several values from being composed as a sweep, if that is what is wrong: Hydra takes what does not
    compose for a single run, an experiment with a mistake too."""
    if not names_several(error):
        return error
    with initialize_config_dir(str(CONF), version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        try:
            hydra.compose_config("config", list(overrides), RunMode.MULTIRUN, validate_sweep_overrides=False)
        except (HydraException, OmegaConfBaseException) as deeper:
            return deeper
    return error


def _read_flags(parser: argparse.ArgumentParser, arguments: list[str]) -> argparse.Namespace:
    def refuse(message: str) -> None:
        raise UsageError(f"{message} (see --help)")

    for word in arguments:
        if word.startswith("="):
            raise UsageError(f"{word!r} has no key: write key=value, as in seed{word}")
    parser.error = refuse  # type: ignore[method-assign, assignment]
    options, strange = parser.parse_known_intermixed_args(arguments)
    if strange:
        raise UsageError(unknown("option", strange[0].partition("=")[0], parser._option_string_actions))
    modes = [flag for flag in ("run", "cfg", "multirun", "info", "shell_completion") if getattr(options, flag)]
    if len(modes) > 1:
        raise UsageError(f"only one of --{', --'.join(modes)} at a time")
    if options.multirun and not options.overrides:
        raise UsageError("-m alone varies nothing: say what to vary, as in -m mode=solo,nccl_cadence seed=0,1,2")
    if options.resolve and not (options.cfg or options.help):
        raise UsageError("--resolve needs --cfg, as in --cfg job --resolve")
    return options


def left_out_reason(composed: DictConfig, overrides: Sequence[str], params: Mapping[str, str]) -> str | None:
    """Return why this point of a sweep is no run; None if it is one. `overrides`: of the command line; `params`: what an
    experiment sweeps, which they overrule."""
    engine, size = (OmegaConf.select(composed, key) for key in ("engine.name", "world_size"))
    if not isinstance(engine, str) or not isinstance(size, int) or engine_of(engine).fits(size):
        return None
    sizes = _effective(overrides, params).get("world_size")
    if sizes is None or len(values(sizes)) < 2:
        return None
    return f"{engine} has one rank, so world_size={size} is no run of it"


def empty(overrides: Sequence[str], params: Mapping[str, str], loader: ConfigLoader) -> list[str]:
    """Return the parts of a sweep that have no values. With one of them all of the sweep is empty."""
    return [override for override in _effective(overrides, params).values() if not values(override, loader)]


def _effective(overrides: Sequence[str], params: Mapping[str, str]) -> dict[str, str]:
    """Return key -> the override that counts."""
    swept = [f"{key}={value}" for key, value in params.items()]
    return {override.partition("=")[0]: override for override in (*swept, *overrides)}


def values(override: str, loader: ConfigLoader | None = None) -> list[str]:
    """Return the overrides that one of a sweep stands for. `loader` knows the members of groups. Raise HydraException."""
    (parsed,) = OverridesParser.create(config_loader=loader).parse_overrides([override])
    if not parsed.is_discrete_sweep():
        return [override]
    return [f"{parsed.get_key_element()}={value}" for value in parsed.sweep_string_iterator()]
