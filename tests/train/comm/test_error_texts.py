"""The texts of torch's and gloo's errors, shortened for people."""

from __future__ import annotations

import pytest

from frog.train.comm.backend import BACKENDS

PRINT = "CollectiveFingerPrint(SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[{}], TensorDtypes=Float)"
DIFFERENT = (
    f"Detected mismatch between collectives on ranks. Rank 0 is running collective: {PRINT.format('96, 32')}, but "
    f"Rank 1 is running collective: {PRINT.format('32')}.Collectives differ in the following aspects: \tTensor shapes"
)


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (
            DIFFERENT,
            "the ranks call different collectives: rank 0 calls allreduce of shape [96, 32], rank 1 calls allreduce of "
            "shape [32]",
        ),
        (
            DIFFERENT.replace("SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[32]", "SequenceNumber=0OpType=SCATTER"),
            "the ranks call different collectives: rank 0 calls allreduce of shape [96, 32]",
        ),
        ("[rank0]:[F1126 21:51:06.03 ProcessGroupGloo.cpp:1537] Check failed: 3 == 4", "Check failed: 3 == 4"),
        ("anything else\nand more", "anything else"),
    ],
)
def test_error_of_gloo_is_one_line(text: str, short: str) -> None:
    assert BACKENDS["gloo"].shorten(RuntimeError(text)) == short
