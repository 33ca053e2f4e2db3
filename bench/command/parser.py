"""The parser of a verb's arguments: reports an error in one line."""

from __future__ import annotations

import argparse
from typing import NoReturn

from bench.base.usage import UsageError
from ddp.suggest import nearest


class Parser(argparse.ArgumentParser):
    """Argument parser that reports an error in one line, with the nearest valid option."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(f"{message} (see {self.prog} --help)")

    def read(self, arguments: list[str]) -> argparse.Namespace:
        """Parse the arguments. Raise UsageError."""
        parsed, strange = self.parse_known_args(arguments)
        for word in strange:
            best = nearest(word, self._option_string_actions)
            self.error(f"unknown argument {word!r}" + (f"; did you mean {best}?" if best else ""))
        return parsed


def verb_parser(verb: str, description: str) -> Parser:
    """Return the parser of a verb."""
    return Parser(prog=f"python -m bench {verb}", description=description, allow_abbrev=False)
