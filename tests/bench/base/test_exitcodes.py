import pytest

from bench.base.exitcodes import STATUS, Exit, gravest


def test_the_table_is_as_documented():
    assert {code.name: code.value for code in Exit} == {
        "OK": 0,
        "REGRESSION": 1,
        "USAGE": 2,
        "INCONCLUSIVE": 3,
        "REFUSED": 4,
        "FAILED": 5,
        "INTERNAL": 6,
        "KILLED": 130,
    }


def test_every_status_has_a_code():
    from typing import get_args

    from bench.results.schema import Status

    assert STATUS.keys() == set(get_args(Status))


@pytest.mark.parametrize(
    ("codes", "worst"),
    [
        ([], Exit.OK),
        ([Exit.OK, Exit.REFUSED], Exit.REFUSED),
        ([Exit.REGRESSION, Exit.REFUSED], Exit.REGRESSION),
        ([Exit.FAILED, Exit.REGRESSION, Exit.USAGE], Exit.FAILED),
        ([Exit.KILLED, Exit.FAILED], Exit.KILLED),
    ],
)
def test_the_gravest_of_several(codes, worst):
    assert gravest(codes) is worst


def test_every_code_has_a_gravity():
    assert gravest(Exit) is Exit.KILLED
