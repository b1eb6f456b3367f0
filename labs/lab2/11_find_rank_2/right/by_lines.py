"""Read each log once, line by line, with a state for each rank."""


def read(log):
    state = {"step": 0, "open": False, "nan": None, "error": None}
    for line in log.splitlines():
        _, *words = line.split()
        if words[0] == "FAILED":
            state["error"] = line
        elif words[0] == "step":
            state["step"] = int(words[1])
            if words[2:] == ["loss", "nan"] and state["nan"] is None:
                state["nan"] = state["step"]
            if words[2] == "all-reduce":
                state["open"] = words[3] == "begins"
    return state


def find_first_failure(logs):
    ranks = [read(log) for log in logs]
    with_nan = [rank for rank in range(len(ranks)) if ranks[rank]["nan"] is not None]
    if with_nan:
        rank = min(with_nan, key=lambda rank: ranks[rank]["nan"])
        return {"rank": rank, "step": ranks[rank]["nan"], "what": "nan"}
    # The rank that is not in an all-reduce is the one for which the others wait.
    (rank,) = [rank for rank in range(len(ranks)) if not ranks[rank]["open"]]
    what = "error"
    if ranks[rank]["error"] is None:
        timed_out = any(other["error"] and "Timed out" in other["error"] for other in ranks)
        what = "hung" if timed_out else "killed"
    return {"rank": rank, "step": ranks[rank]["step"], "what": what}
