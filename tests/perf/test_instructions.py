"""A layer call and the matrix products need no more instructions than instructions.json says.
Times say little on a busy machine; these counts repeat. instructions.py tells how, and renews."""
import json
import os
import pathlib
import warnings

import pytest

import instructions

BASELINE = json.loads(instructions.BASELINE.read_text())
BUILD = pathlib.Path(os.environ.get("SY_BUILD", instructions.ROOT / "build" / "release")).resolve()


@pytest.fixture(scope="session")
def stubs():
    """Nothing here talks to a server: the whole-system tests' stubs are not needed."""


@pytest.fixture(scope="session")
def counted():
    try:
        return instructions.measure(BUILD, BASELINE)
    except instructions.Unfit as why:
        pytest.skip(str(why))


def judge(sign, text):
    if sign < 0:
        warnings.warn(text)
    assert sign <= 0, text


@pytest.mark.parametrize("case", BASELINE["kernels"])
def test_a_matrix_product_takes_no_more_instructions(counted, case):
    judge(*instructions.judge_kernel(case, BASELINE, counted))


@pytest.mark.parametrize("figure", ["kernels", "copies", "code"])
@pytest.mark.parametrize("case", BASELINE["layer"])
def test_a_layer_call_takes_no_more_instructions(counted, case, figure):
    judge(*instructions.judge_layer(case, figure, BASELINE, counted))
