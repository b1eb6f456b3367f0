"""Discrete-event simulation of training steps on a cluster, with stragglers, jitter, slow links and losses."""
