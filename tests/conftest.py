"""Which schedules hypothesis draws: the same in every run, unless `make campaign` asks for new ones. What tests draw by
themselves is the same, too. One thread for torch in each process, as in ranks. Warm commands, warm workers, warm ranks."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
from collections.abc import Callable, Generator, Iterator
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import Phase, settings

from tests.warm import Warm, WarmServer
from tests.workers import Nursery, modules

settings.register_profile("same", derandomize=True, database=None, deadline=None)
settings.register_profile("new", phases=[Phase.explicit, Phase.reuse, Phase.generate], print_blob=True, deadline=None)
settings.load_profile(os.environ.get("SCHEDULES", "same"))

# Nothing is kept in, or read from, what belongs to the user.
_CACHE = mkdtemp(prefix="elche-bench-tests-")
os.environ["XDG_CACHE_HOME"] = _CACHE

# Before anything imports torch: several processes test at once, and threads beyond the cores spin for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts something in the background has it ignore interrupts, which tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# After the number of threads is set.
import numpy  # noqa: E402
import torch  # noqa: E402

WARM = "WARM_SERVER"
"""Where the server listens that all who test at once share."""


NURSERY = pytest.StashKey[Nursery]()


def pytest_configure(config: pytest.Config) -> None:
    """Start what those share who test at once: each would import torch for its commands, and all modules for itself."""
    if worker := getattr(config, "workerinput", {}).get("workerid"):
        os.environ["XDG_CACHE_HOME"] = f"{_CACHE}/{worker}"
        return
    config.add_cleanup(lambda: shutil.rmtree(_CACHE, ignore_errors=True))
    if config.getoption("numprocesses", None) and not config.option.collectonly:
        server = WarmServer()
        config.add_cleanup(server.close)
        os.environ[WARM] = server.path
        config.stash[NURSERY] = nursery = Nursery(list(modules(config.args)), _seed)
        config.add_cleanup(nursery.close)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    if nursery := config.stash.get(NURSERY, None):
        for spec in specs:
            spec.python = nursery.python


RANKS = (
    *("pytest", "hypothesis", "psutil", "ddp.trainer", "ddp.trainer.task", "bench.models", "bench.audit.process"),
    *("ddp.comm.transports.gloo", "ddp.comm.transports.memory", "ddp.comm.transports.nccl", "bench.prove.ranks"),
    *(
        "tests.runtime.conftest",
        "tests.api.conftest",
        "tests.runtime.sharding.sharded_ranks",
        "tests.runtime.sharding.zero_tasks",
    ),
)
"""What test modules import, and so would every rank that runs a function of theirs: a tenth of a second and more."""


def pytest_sessionstart() -> None:
    """Have the fork server, which starts with its first call and imports nothing later, import these as well."""
    from ddp.backends import BACKENDS
    from ddp.process import forkserver

    warm, modules_of_ranks = forkserver.warm, (*RANKS, *(spec.module for spec in BACKENDS.values()))
    forkserver.warm = lambda preload=(): warm((*preload, *modules_of_ranks))


HEAVIEST = (
    *("commands/test_resume.py", "sim/test_faults.py", "commands/test_launchers.py", "command/test_cli.py"),
    *("faults/test_process_cells.py", "command/test_cli_failures.py", "commands/test_restarts.py"),
    *("report/test_pages.py", "remote/test_remote_run.py", "command/test_taken.py", "commands/test_cli_process.py"),
    *("audit/test_audit.py", "launcher/test_real_launchers.py", "command/test_printed_commands.py"),
    *("conformance/test_oracle.py", "virtual/test_virtual.py", "report/test_report_plans.py", "losses/test_rejoin.py"),
    *("sim/test_controller.py", "api/test_script.py", "predict/test_predict.py", "api/test_checkpoints.py"),
    *("command/test_strange_files.py", "repository/test_wheel.py", "sim/test_checkpoints.py"),
    *("api/test_several_optimizers.py", "audit/test_audit_ranks.py"),
)
"""Files that take long come first, those that compute beside those that wait: at the end nobody waits for one of them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by file, and leave the order inside each."""
    places = {file: place for place, file in enumerate(HEAVIEST)}
    items.sort(key=lambda item: places.get(f"{item.path.parent.name}/{item.path.name}", len(HEAVIEST)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage meanwhile: a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Leave what is imported and collected out of every later collection of garbage, an eighth of what tests compute; and
    collect seldom: a simulated run is a seventh faster."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


def pytest_collectstart() -> None:
    """Seed what modules draw for their parameters."""
    _seed()


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Seed what a test draws."""
    _seed()


def _seed() -> None:
    random.seed(0)
    numpy.random.seed(0)
    torch.default_generator.manual_seed(0)


@pytest.fixture
def press() -> Iterator[Callable[[], None]]:
    """Ctrl-C, here. Nobody listens to the garbage collector meanwhile: an interrupt that comes in a listener is lost."""
    listening = gc.callbacks[:]
    gc.callbacks.clear()
    yield lambda: os.kill(os.getpid(), signal.SIGINT)
    gc.callbacks[:] = listening


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """Where commands are started that need not import torch anew."""
    with Warm(os.environ.get(WARM)) as server:
        yield server
