import re


def find_first_failure(logs):
    rank = min(range(len(logs)), key=lambda rank: logs[rank].splitlines()[-1].split()[0])
    log = logs[rank]
    if "loss nan" in log:
        what = "nan"
    elif "FAILED" in log:
        what = "error"
    else:
        what = "hung" if any("Timed out" in other for other in logs) else "killed"
    return {"rank": rank, "step": int(re.findall(r"step (\d+) begins", log)[-1]), "what": what}
