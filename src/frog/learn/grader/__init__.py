"""Run what a learner wrote, in processes of its own under limits, and judge what it did."""
