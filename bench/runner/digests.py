"""Digests of a user's task: its code, the code's dependencies, and its data.

The digest of code covers bytecode, constants, defaults, closures, and all of the user's own code and objects that
functions reach through global names, classes and objects. Comments, line numbers and function names are left out.
Installed packages count by name and version, the user's modules by their files. Digests hold for one version of Python
only, as bytecode does.
"""

from __future__ import annotations

import functools
import importlib.util
import random
import sys
import sysconfig
from argparse import Namespace
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, ForwardRef

import numpy as np
import torch
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from bench.runner.bytecode import attributes_read, imported, loaded
from bench.runner.lasting import attributes, reduced
from ddp.data.fingerprint import undisturbed
from ddp.data.seeded import seed_others
from ddp.data.source import TensorSource

ATOMS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), torch.dtype, torch.device, torch.Size)
NAMED = ("ddp", "bench", "torch", "numpy")
"""Packages that count by name alone: the harness, and packages whose version every result records."""
SETTINGS = (Namespace, SimpleNamespace, DictConfig)
"""Types of settings objects: only the attributes that code reads count."""
CHANGING = (int, float, str, list, dict, set, deque, random.Random, np.random.Generator, np.random.RandomState)
"""Types of variables that steps keep their own books in, or draw from; and tensors and arrays of up to `SMALL` bytes."""
SMALL = 1 << 20
DRAWN = 16
"""Samples hashed of a data set that has no tensors."""


class TaskDigest:
    """Collects and hashes everything that values reach. One instance covers all parts of a task."""

    def __init__(self, moving: Collection[str] = ()) -> None:
        """`moving`: variables that count by name alone, as training changes them, such as a list of losses."""
        self.moving = moving
        self.variables: dict[str, str] = {}
        """Digest of each variable with a number, text or collection."""
        self._files: dict[str, str] = {}
        self._packages: dict[str, str] = {"python": ".".join(map(str, sys.version_info[:2]))}

    @property
    def dependencies(self) -> str:
        """Return the digests of the user's files and the versions of packages that values reached."""
        known = {**self._packages, **{name: digest[:16] for name, digest in self._files.items()}}
        return ", ".join(f"{name} {known[name]}" for name in sorted(known))

    def of(self, values: Iterable[Any]) -> str:
        """Return the sha256 of everything that `values` reach."""
        return _Walk(self, self.variables).digest(values)

    def moved(self, before: TaskDigest) -> list[str]:
        """Return the variables that have another value than `before`."""
        return [name for name, value in self.variables.items() if before.variables.get(name) != value]

    def depend(self, name: str | None) -> bool:
        """Note that the module of that name was reached; return whether it is the user's own."""
        module = sys.modules.get(name or "")
        file = getattr(module, "__file__", None)
        if name == "__main__":
            return True
        if module is None or name is None or file is None:
            return False
        root = name.partition(".")[0]
        if root in NAMED:
            return False
        if _installed(Path(file)):
            if root not in sys.stdlib_module_names and root not in self._packages:
                self._packages[root] = _version(root)
            return False
        if name not in self._files:
            self._files[name] = sha256(Path(file).read_bytes()).hexdigest()
            for value in list(vars(module).values()):
                owner = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
                if isinstance(owner, str) and owner != "__main__":
                    self.depend(owner)
        return True

    def import_later(self, name: str) -> None:
        """Note a module that code imports when it is called. The user's own modules are imported now, with their own
        imports."""
        root = name.partition(".")[0]
        with suppress(Exception):  # it is heard where the code imports it
            spec = importlib.util.find_spec(root)
            if spec is None or spec.origin is None or root in NAMED:
                return
            if not _installed(Path(spec.origin)):
                importlib.import_module(name)
                self.depend(name)
            elif root not in sys.stdlib_module_names:
                self._packages.setdefault(root, version(root))


def _installed(file: Path) -> bool:
    paths = sysconfig.get_paths()
    return bool({"site-packages", "dist-packages"} & set(file.parts)) or any(
        file.is_relative_to(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return str(getattr(sys.modules.get(package), "__version__", "?"))


class _Walk:
    """One hash over everything that values reach, each object counted once."""

    def __init__(self, task: TaskDigest, variables: dict[str, str] | None = None) -> None:
        self._task, self._hash, self._variables = task, sha256(), variables
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []  # a number is an object's only as long as there is the object

    def digest(self, values: Iterable[Any]) -> str:
        for value in values:
            self._walk(value)
        return self._hash.hexdigest()

    def _say(self, *words: object) -> None:
        for word in words:
            text = str(word).encode(errors="surrogatepass")
            self._hash.update(b"%d:" % len(text) + text)

    def _walk(self, value: Any) -> None:
        if isinstance(value, ATOMS):
            self._say(type(value).__name__, repr(value))
            return
        if id(value) in self._seen:
            self._say("again", self._seen[id(value)])
            return
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        self._object(value)

    def _object(self, value: Any) -> None:
        match value:
            case Tensor():
                self._tensor(value)
            case np.ndarray() if value.dtype != object:
                self._say("array", value.dtype, value.shape)
                self._hash.update(np.ascontiguousarray(value).tobytes())
            case list() | tuple():
                self._say(type(value).__name__, len(value))
                self._all(value)
            case dict():
                self._say("dict", len(value))
                self._all(part for pair in value.items() for part in pair)
            case set() | frozenset():
                self._say("set", *sorted(_Walk(self._task).digest([member]) for member in value))
            case FunctionType():
                self._function(value)
            case MethodType():
                self._say("method")
                self._all((value.__func__, value.__self__))
            case type():
                self._class(value)
            case ModuleType():
                self._task.depend(value.__name__)
                self._say("module", value.__name__)
            case CodeType():
                self._code(value, value.co_consts)
            case _:
                self._other(value)

    def _all(self, values: Iterable[Any]) -> None:
        for value in values:
            self._walk(value)

    def _tensor(self, tensor: Tensor) -> None:
        self._say("tensor", tensor.dtype, list(tensor.shape), tensor.requires_grad)
        if not tensor.is_meta:
            dense = tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()
            self._hash.update(dense.cpu().resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().data)

    def _function(self, function: FunctionType) -> None:
        if not self._task.depend(function.__module__):
            self._say("function", function.__module__, function.__qualname__)
            return
        code = function.__code__
        documented = bool(code.co_consts) and code.co_consts[0] == function.__doc__
        self._say("own function")
        self._code(code, (None, *code.co_consts[1:]) if documented else code.co_consts)
        self._all((function.__defaults__, function.__kwdefaults__))
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                self._variable(function, name, cell.cell_contents)
            except ValueError:  # empty as yet
                self._say("empty")
        for name in sorted(set(loaded(code))):
            if name in function.__globals__:
                self._say("global", name)
                self._variable(function, name, function.__globals__[name])
        package = function.__globals__.get("__package__") or ""
        for name in sorted(set(imported(code, package))):
            self._task.import_later(name)

    def _variable(self, function: FunctionType, name: str, value: Any) -> None:
        """Hash a variable that a function reads; of a settings object, such as argparse's, only the attributes that it
        reads."""
        key = f"{function.__module__}.{function.__qualname__}: {name}"
        if key in self._task.moving:
            return
        small = isinstance(value, (Tensor, np.ndarray)) and value.nbytes <= SMALL
        if self._variables is not None and (small or isinstance(value, CHANGING)):
            self._variables[key] = _Walk(self._task).digest([value])
        read = attributes_read(function.__code__, name) if isinstance(value, SETTINGS) else None
        if read is None:
            self._walk(value)
            return
        for attribute in sorted(read):
            self._say(attribute)
            try:
                self._walk(getattr(value, attribute))
            except (AttributeError, OmegaConfBaseException):  # it is heard where it is read
                self._say("none")

    def _code(self, code: CodeType, constants: tuple[Any, ...]) -> None:
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self._say("code", *counts, code.co_code.hex(), code.co_exceptiontable.hex())
        self._say(*code.co_names, "|", *code.co_varnames, "|", *code.co_freevars, "|", *code.co_cellvars)
        self._all(constants)

    def _class(self, kind: type) -> None:
        self._say("class", kind.__qualname__)
        if not self._task.depend(kind.__module__):
            self._say(kind.__module__)
            return
        self._all(kind.__bases__)
        for name, value in sorted(attributes(kind).items()):
            self._say(name)
            self._walk(value)

    def _other(self, value: Any) -> None:
        """Hash an object by its pickled state, or by its attributes if it cannot be pickled."""
        if isinstance(value, (staticmethod, classmethod)):
            self._walk(value.__func__)
            return
        if isinstance(value, property):
            self._all((value.fget, value.fset, value.fdel))
            return
        if isinstance(value, functools._lru_cache_wrapper):
            self._walk(value.__wrapped__)
            return
        if isinstance(value, ForwardRef):
            self._say("name", value.__forward_arg__)
            return
        if isinstance(value, functools.partial):
            self._all((value.func, value.args, value.keywords))
            return
        if isinstance(value, BuiltinFunctionType) or not hasattr(value, "__dict__"):
            self._say(getattr(value, "__module__", ""), getattr(value, "__qualname__", ""))
        self._walk(type(value))
        parts = reduced(value)
        if isinstance(parts, str):
            self._say(parts)
            return
        self._all(part if not isinstance(part, Iterator) else list(part) for part in parts)


def data_digest(task: TaskDigest, source: Any) -> str:
    """Return the sha256 of a data set. Samples that differ at each reading (random transforms) are left out.

    Tensors are hashed whole; of other data sets, the code of the class, the length and some evenly spaced samples."""
    if type(source) is TensorSource:
        return task.of(source.tensors)
    if not len(source):
        return task.of([None])
    about = [type(source), type(getattr(source, "dataset", None)), len(source)]
    positions = torch.tensor(sorted({len(source) * place // DRAWN for place in range(DRAWN)}))
    seen: list[str] = []
    with undisturbed():
        for seed in (1, 2):
            torch.manual_seed(seed)
            seed_others(seed)
            try:
                seen.append(task.of([source.batch(positions)]))
            except Exception:  # of the user's own code: it is heard where the sample is trained
                return task.of(about)
    return task.of([*about, seen[0] if seen[0] == seen[1] else None])
