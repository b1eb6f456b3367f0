"""Tracebacks in the forms of notebooks: IPython writes frames without quotes, and source lines with numbers."""

from __future__ import annotations

import pytest

from frog.observe.diagnose.known_errors.explain import explain_log
from frog.observe.diagnose.known_errors.findings import Finding

RULE = "-" * 75 + "\n"
NEW = (
    RULE
    + "OddError                                  Traceback (most recent call last)\n"
    + "Cell In[7], line 9\n      7 x = 1\n----> 9 go(x)\n\n"
    + "File ~/frob/run.py:136, in go(x)\n    134 mesh = (\n--> 136   np.array(jax.devices()).reshape(n)\n    137 )\n"
    + "File ~/env/site-packages/numpy/core.py:12, in reshape(a, *shape)\n     11 \n---> 12 return f(a)\n\n"
)
OLD = (
    RULE
    + "OddError                                  Traceback (most recent call last)\n"
    + "<ipython-input-1-c7dfdefd629f> in <module>\n      1 import frob\n----> 2 go()\n\n"
    + "~/frob/run.py in go(x, timeout)\n    134 mesh = (\n--> 136   np.array(jax.devices()).reshape(n)\n"
    + "~/env/site-packages/numpy/core.py in reshape(a)\n---> 12 return f(a)\n\n"
)


def cause_of(text: str) -> Finding:
    cause = explain_log(text.splitlines(keepends=True)).cause
    assert cause is not None
    return cause


@pytest.mark.parametrize("frames", [NEW, OLD, NEW[NEW.index("File ~/frob") :]])
def test_traceback_of_a_notebook_names_the_users_line_and_its_source(frames: str) -> None:
    cause = cause_of(frames + "OddError: cannot do that\n")
    assert (str(cause.frame), cause.source) == ("~/frob/run.py:136 in go", "np.array(jax.devices()).reshape(n)")
    assert cause.innermost == "~/env/site-packages/numpy/core.py in reshape"
    assert cause.text == "OddError: cannot do that"


def test_cell_is_the_place_if_no_file_is_the_users() -> None:
    cell = NEW[: NEW.index("File ~/frob")] + NEW[NEW.index("File ~/env") :]
    assert str(cause_of(cell + "OddError: cannot do that\n").frame) == "Cell In[7]:9"


def test_mesh_of_another_number_of_devices_is_a_kind() -> None:
    cause = cause_of(NEW + "ValueError: cannot reshape array of size 2 into shape (1,64)\n")
    assert cause.meaning is not None
    assert cause.meaning.id == "mesh-and-devices"
    assert "1,64" in cause.meaning.says


def test_sentence_with_in_does_not_end_up_in_a_traceback() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/home/me/t.py", line 7, in main\n    go()\nOddError: no\n\n'
        "\n/data/out in folder(x)\n~/out in progress\n"
    )
    assert (cause_of(text).text, str(cause_of(text).frame)) == ("OddError: no", "/home/me/t.py:7 in main")
