import re


def find_first_failure(logs):
    failures = []
    for rank, log in enumerate(logs):
        for line in log.splitlines():
            if "FAILED" in line:
                failures.append((line.split()[0], rank, line))
    _, rank, line = min(failures)
    what = "nan" if "nan" in line else "hung" if "Timed out" in line else "killed" if "closed" in line else "error"
    return {"rank": rank, "step": int(re.findall(r"step (\d+)", logs[rank])[-1]), "what": what}
