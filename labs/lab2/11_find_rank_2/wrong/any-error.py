import re


def find_first_failure(logs):
    lines = sorted((line, rank) for rank, log in enumerate(logs) for line in log.splitlines())
    for line, rank in lines:
        if "Error" in line:
            before = [other for other, owner in lines if owner == rank and other <= line]
            step = int(re.findall(r"step (\d+)", "\n".join(before))[-1])
            return {"rank": rank, "step": step, "what": "nan" if "nan" in line else "error"}
