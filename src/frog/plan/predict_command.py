"""`frog plan`: predict runs on clusters. Imports happen when the command runs."""

from __future__ import annotations

import argparse
import csv
import io
import sys
from pathlib import Path


def add_plan_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `plan`; it sets `handler`, which takes the arguments."""
    plan = commands.add_parser(
        "plan",
        help="predict step time and memory of training runs on a cluster",
        description="Predict step time and memory of training runs on GPU clusters, by formula: docs/plan.md.",
    )
    actions = plan.add_subparsers(dest="action", required=True, metavar="ACTION")
    predict = actions.add_parser(
        "predict",
        help="predict each row of a table of runs",
        description="Predict each row of a CSV table of runs: model, GPU, layout, batch. Prints CSV.",
    )
    predict.add_argument("table", type=Path, metavar="TABLE.csv", help="one run per row; the columns: docs/plan.md")
    predict.add_argument("--to", type=Path, metavar="FILE", help="write the predictions there")
    predict.set_defaults(handler=_predict)


def _predict(args: argparse.Namespace) -> int:
    from frog.core.files import write_atomic
    from frog.plan.estimate.predict import COLUMNS, predict_rows, read_table

    predictions = list(predict_rows(read_table(args.table)))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(prediction.cells() for prediction in predictions)
    if args.to is None:
        sys.stdout.write(text.getvalue())
        return 0
    write_atomic(args.to, text.getvalue())
    num_known = sum(prediction.step_time_s is not None for prediction in predictions)
    print(f"{args.to}: predicted {num_known} of {len(predictions)} rows; the column `why` has the reasons")
    return 0
