"""Values: frozen, copied with changes, and usable by the functions of `dataclasses`."""

from __future__ import annotations

import copy
import pickle
import pprint
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, is_dataclass
from dataclasses import replace as replace_dataclass
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp.core.messages.commands import Command
from ddp.core.messages.events import Event, Progress, Slice
from ddp.core.state.coordinator_state import CoordinatorState
from ddp.core.values.frozen import replace, value
from ddp.process.codec import encode, encode_slices


@value(frozen=True)
class Base:
    """A value with a field that others inherit."""

    at: float


@value(frozen=True)
class Point(Base):
    """A value with fields of all kinds, a property and a method."""

    x: int
    y: int = 2
    trail: tuple[int, ...] = ()

    @property
    def both(self) -> int:
        """Return the sum."""
        return self.x + self.y

    def moved(self) -> Point:
        """Return the point one further."""
        return replace(self, x=self.x + 1)


@value(frozen=True)
class Listed:
    """A value with a default that is made anew."""

    names: list[str] = field(default_factory=lambda: ["first"])


@dataclass(frozen=True)
class Twin:
    """`Point` as a dataclass."""

    at: float
    x: int
    y: int = 2
    trail: tuple[int, ...] = ()


def test_a_value_cannot_be_changed() -> None:
    with pytest.raises((AttributeError, FrozenInstanceError)):
        Point(0.0, 1).x = 2  # type: ignore[misc]  # type checkers refuse it, too


def test_a_copy_has_the_changes_and_no_others() -> None:
    point = Point(0.5, 1, trail=(3,))
    assert point.moved() == Point(0.5, 2, 2, (3,))
    assert (point.x, point.moved().both) == (1, 4)
    with pytest.raises(TypeError):
        replace(point, z=1)  # type: ignore[call-arg]  # type checkers refuse it, too


def test_it_is_equal_hashed_copied_and_pickled_by_its_fields() -> None:
    point = Point(0.5, 1)
    assert point == Point(0.5, 1) != Point(0.5, 2)
    assert hash(point) == hash(Point(0.5, 1))
    assert copy.deepcopy(point) == pickle.loads(pickle.dumps(point)) == point
    assert repr(point) == "Point(at=0.5, x=1, y=2, trail=())"


def test_the_functions_of_dataclasses_see_it_as_they_see_a_dataclass() -> None:
    point = Point(0.5, 1)
    assert [(f.name, f.type, f.default) for f in fields(Point)] == [(f.name, f.type, f.default) for f in fields(Twin)]
    assert asdict(point) == asdict(Twin(0.5, 1))
    assert replace_dataclass(point, y=5) == Point(0.5, 1, 5)


def test_a_default_that_is_made_anew_is_nobody_elses() -> None:
    Listed().names.append("second")
    assert Listed().names == ["first"]
    assert fields(Listed)[0].default_factory() == ["first"]  # type: ignore[misc]  # it has one


class Outer:
    """A class with a value in it."""

    @value(frozen=True)
    class Inner:
        """A value whose fields say more than a default."""

        x: int = field(default=3)
        y: int = field(default=4, compare=True)


def test_a_field_without_a_factory_and_a_nested_class() -> None:
    assert pickle.loads(pickle.dumps(Outer.Inner())) == Outer.Inner(3, 4)


def test_a_field_of_an_inheriting_value_is_refused() -> None:
    """It was not called: the default was the description of the field."""
    with pytest.raises(TypeError, match=r"write its defaults without field\(\)"):

        @value(frozen=True)
        class Child(Base):
            names: list[str] = field(default_factory=list)


def test_a_long_value_is_printed() -> None:
    """Pytest, too, prints values in its diffs with this."""
    assert "Point(at=0.5" in pprint.pformat([Point(0.5, 1, trail=tuple(range(40)))], width=20)


@given(st.lists(st.builds(Slice, st.floats(0, 9), st.integers(0, 9), st.text(), st.floats(0, 9), st.integers(0, 9))))
def test_many_slices_are_written_as_one_is(slices: list[Slice]) -> None:
    slices.append(Slice(0.0, 0, '{"at":', 1.0))
    assert encode_slices(slices) == b"".join(encode(each) + b"\n" for each in slices)


@pytest.mark.parametrize(
    "kind", [*get_args(Event), *get_args(Command), CoordinatorState], ids=lambda kind: kind.__name__
)
def test_all_that_the_coordinator_reads_keeps_and_orders_is_frozen(kind: type) -> None:
    assert is_dataclass(kind)
    assert kind.__struct_config__.frozen  # type: ignore[attr-defined]  # type checkers see a dataclass


def test_a_message_keeps_its_fields_in_their_order() -> None:
    assert [each.name for each in fields(Progress)][:5] == ["at", "rank", "epoch", "steps", "samples"]
