"""The specification of a Job, alone or in a JobSet."""

from __future__ import annotations

from frog.cluster.kubernetes.fields import Fields
from frog.cluster.kubernetes.objects import KubernetesJob, Rule
from frog.cluster.kubernetes.pod_template import Volume, read_template

_RULE_ACTIONS = ("FailJob", "Ignore", "Count")
_MOST_PODS = 100_000
"""Kubernetes' limits for an indexed Job."""


def read_job(
    spec: Fields, name: str, namespace: str, notes: list[str], *, in_set: bool = False, volumes: tuple[Volume, ...] = ()
) -> KubernetesJob:
    """Return the Job that a `spec` describes.

    in_set: a JobSet's controller fills in what a Job alone must say. volumes: further volumes of its pods.
    """
    spec.text("completionMode", "Indexed" if in_set else "NonIndexed", choices=["Indexed"])
    one = 1 if in_set and not spec.has("parallelism") else None
    completions = spec.number("completions", one, least=1, most=_MOST_PODS)
    parallelism = spec.number("parallelism", 1, least=1, most=_MOST_PODS)
    backoff_limit = spec.number("backoffLimit", 6)
    deadline_s = spec.optional_number("activeDeadlineSeconds")
    spec.text("podReplacementPolicy", "Failed", choices=["Failed"])
    policy = spec.object("podFailurePolicy")
    template = read_template(spec.object("template"), notes, "OnFailure" if in_set else None, volumes)
    rules = tuple(_read_rule(rule, template.container.name) for rule in policy.objects("rules"))
    policy.done()
    if rules and template.restart_policy != "Never":
        policy.problem(f"needs restartPolicy Never; the pods have {template.restart_policy}")
    spec.without_effect("ttlSecondsAfterFinished")
    spec.done()
    return KubernetesJob(name, namespace, completions, parallelism, backoff_limit, deadline_s, rules, template)


def _read_rule(rule: Fields, container: str) -> Rule:
    action = rule.text("action", choices=_RULE_ACTIONS)
    for condition in rule.objects("onPodConditions"):
        condition.text("type")
        condition.text("status", "True")
        condition.done()
    if not rule.has("onExitCodes"):
        rule.done()
        return Rule(action, None)
    on = rule.object("onExitCodes")
    rule.done()
    if (name := on.optional_text("containerName")) not in (None, container):
        on.problem(f"{name!r}: the pods' container is {container!r}", "containerName")
    operator = on.text("operator", choices=["In", "NotIn"])
    codes = on.numbers("values")
    on.done()
    return Rule(action, tuple(codes), operator == "In")
