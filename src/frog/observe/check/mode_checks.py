"""Rules on the mode in which a model computes: training, evaluation, autocast."""

from __future__ import annotations

from frog.core.units import span
from frog.observe.check.comparison import Comparison, NotObservable
from frog.observe.check.rank_records import Forward, RankRecord, Step
from frog.observe.check.rule import Broken


def evaluation_mode(case: Comparison) -> Broken | None:
    """Find training forwards in evaluation mode after some in training mode."""
    case.require_steps()
    seen = False
    for record in case.records.values():
        trained: dict[int, int] = {}
        for step in record.steps:
            if not step.backwards:
                continue
            training = {forward.module for forward in step.forwards if forward.grad and forward.training}
            for forward in step.forwards:
                if not forward.grad:
                    continue
                module = record.modules.get(forward.module)
                seen = True
                if forward.unset is not None:
                    return Broken(
                        f"the forward at {forward.line} trains a model whose own `train()`, at {forward.unset}, was "
                        "never called: what it does, such as freezing layers, has not been done",
                        "likely",
                        "call `model.train()` before the first step",
                        step=step.number,
                        ranks=(record.rank,),
                        line=forward.line,
                    )
                if forward.training:
                    trained.setdefault(forward.module, step.number)
                elif forward.module in trained and forward.module not in training and module and module.modes:
                    return Broken(
                        f"since step {step.number}, the model is in evaluation mode while it trains on rank "
                        f"{record.rank}, at {forward.line}: dropout is off and batch norm does not learn",
                        "likely",
                        "call `model.train()` after each evaluation",
                        step=step.number,
                        ranks=(record.rank,),
                        line=forward.line,
                    )
    if not seen:
        raise NotObservable("no forward of a module was seen before a backward pass")
    return _evaluates_on_some_ranks(case) or _never_trains(case)


def _never_trains(case: Comparison) -> Broken | None:
    """Find a model that no rank ever has in training mode."""
    for record in case.records.values():
        forwards = [each for step in record.steps if step.backwards for each in step.forwards if each.grad]
        module = record.modules.get(forwards[0].module) if forwards else None
        if module is None or not module.modes or any(each.training for each in forwards) or len(record.steps) < 3:
            return None
    record = case.any
    line = next(each.line for step in record.steps if step.backwards for each in step.forwards if each.grad)
    return Broken(
        f"the model is in evaluation mode in all steps, at {line}: dropout is off and batch norm does not learn",
        "possible",
        "call `model.train()` before the first step, unless it is meant: from_pretrained() returns a model in "
        "evaluation mode, and Lightning keeps the mode",
        step=1,
        ranks=(record.rank,),
        line=line,
    )


def _evaluates_on_some_ranks(case: Comparison) -> Broken | None:
    """Find replicas of which some train in evaluation mode and others do not."""
    for replica in case.replicas[:1]:
        for moment in case.moments(replica.optimizer):
            modes = {
                rank: forward
                for rank, step in moment.of.items()
                for forward in step.forwards[-1:]
                if forward.grad and case.records[rank].modules[forward.module].modes
            }
            still = [rank for rank, forward in modes.items() if not forward.training]
            if still and len(still) < len(modes):
                line = modes[still[0]].line
                return Broken(
                    f"in step {moment.step}, the model is in evaluation mode on {span(still)}, at {line}, and in "
                    "training mode on other ranks: dropout and batch norm differ between replicas",
                    "likely",
                    "call `model.train()` after each evaluation, also after one before the first step and on the ranks "
                    "that evaluate alone",
                    step=moment.step,
                    ranks=tuple(still),
                    line=line,
                )
    return None


def evaluations_draw_nothing(case: Comparison) -> Broken | None:
    """Find evaluations that draw random numbers, or that use an estimate which only training improves."""
    seen = False
    for record in case.records.values():
        for step in record.steps:
            for forward in step.forwards:
                seen = seen or not forward.training
                if forward.early:
                    finding = (
                        f"the forward at {forward.line} evaluates a spectral norm before the first training forward"
                    )
                    advice = "evaluate after training forwards: until then the norm is estimated at random"
                elif forward.noisy:
                    finding = f"the forward at {forward.line} draws random numbers in evaluation mode"
                    advice = (
                        "is it meant, as sampling is? A dropout that is called as a function needs "
                        "`training=self.training`"
                    )
                elif _teaches_in_training_mode(record, step, forward):
                    finding = (
                        f"the forward at {forward.line}, without gradients, of a model that no optimizer trains draws "
                        "random numbers in training mode, while another one learns"
                    )
                    advice = "call `teacher.eval()`, and again after a `train()` of a module that holds it"
                else:
                    continue
                return Broken(
                    f"step {step.number} on rank {record.rank}: {finding}",
                    "possible",
                    advice,
                    step=step.number,
                    ranks=(record.rank,),
                    line=forward.line,
                )
    if not seen:
        raise NotObservable("no forward in evaluation mode was seen before a step")
    return None


def _teaches_in_training_mode(record: RankRecord, step: Step, forward: Forward) -> bool:
    """True for a forward that drops elements of a model which is only read, as a teacher is, in a step that trains."""
    module = record.modules.get(forward.module)
    if forward.grad or not forward.training or not forward.draws or module is None or record.trains(module):
        return False
    return any(other.grad and other.module != forward.module for other in step.forwards)


def autocast_reaches(case: Comparison) -> Broken | None:
    """Find forwards under autocast of which no layer computes in half precision."""
    case.require_steps()
    seen = False
    for record in case.records.values():
        for step in record.steps:
            for forward in step.forwards:
                seen = seen or forward.lowered is not None
                if forward.lowered is False:
                    others = any(each.lowered for each in step.forwards)
                    return Broken(
                        f"the forward at {forward.line} is called under autocast, and all of its linear layers and "
                        "convolutions return float32: autocast does not reach them",
                        "possible" if others else "likely",
                        "look for a region inside of it that turns autocast off, or for a function that was traced or "
                        "transformed outside of autocast",
                        step=step.number,
                        ranks=(record.rank,),
                        line=forward.line,
                    )
    if not seen:
        raise NotObservable("no linear layer or convolution ran under autocast")
    return None
