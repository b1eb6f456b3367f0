import re


def find_first_failure(logs):
    for rank, log in enumerate(logs):
        if "FAILED" in log:
            step = int(re.findall(r"step (\d+)", log)[-1])
            return {"rank": rank, "step": step, "what": "error"}
