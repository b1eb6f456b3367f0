import heapq, re
def _ev(r, s, a):
    for line in s:
        m = re.match(r"(\d+(?:\.\d+)?) ", line)
        if m: yield float(m[1]) - a, r, line
def merge(streams, ahead_s):
    for t, r, l in heapq.merge(*[_ev(r, s, ahead_s[r]) for r, s in enumerate(streams)], key=lambda e: (e[0], e[1])):
        yield r, l
