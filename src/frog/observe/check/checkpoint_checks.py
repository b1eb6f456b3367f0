"""Rules on checkpoints: what is saved is complete, and what is loaded is what was saved and what is trained."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from frog.core.units import some_of, span
from frog.observe.check.comparison import MOST_NAMES, Comparison, NotObservable
from frog.observe.check.rank_records import Call, RankRecord
from frog.observe.check.rule import Broken, Rule

_MOST_OF = 0.5
"""Share of the weights that were loaded: as many have not just a new head."""


def one_writer(case: Comparison) -> Broken | None:
    """Find a file that several ranks write in the same step."""
    case.require_ranks()
    written: dict[tuple[int, str], list[tuple[int, Call]]] = {}
    for rank, record in case.records.items():
        for number, call in record.calls("save"):
            if call.path is not None:
                written.setdefault((number, call.path), []).append((rank, call))
    if not written:
        raise NotObservable("torch.save was not called with a file name")
    for (number, path), calls in written.items():
        ranks = sorted({rank for rank, _ in calls})
        if len(ranks) > 1:
            return Broken(
                f"{span(ranks)} write the same file before step {number}: {path}",
                "likely",
                "save on rank 0 only (and let the others wait), or give each rank a file of its own",
                step=number,
                ranks=tuple(ranks),
                line=calls[0][1].line,
            )
    return None


def loaded_keys(case: Comparison) -> Broken | None:
    """Find a model that was loaded with keys that did not match."""
    loads = [(rank, call) for rank, record in case.records.items() for _, call in record.calls("load_model")]
    if not loads:
        raise NotObservable("no model was loaded with load_state_dict")
    for rank, call in loads:
        wrong = [*call.missing, *call.unexpected]
        if wrong:
            nothing = f"{len(call.missing)} missing, {len(call.unexpected)} unknown: {', '.join(wrong[:4])}"
            prefix = any(key.startswith(("module.", "_orig_mod.")) for key in wrong)
            if call.line is None and not prefix:
                continue  # Frog's own trainer gives a base a new head
            where = f" at {call.line}" if call.line is not None else ""
            return Broken(
                f"load_state_dict{where} left out keys without an error ({nothing})",
                "likely" if prefix else "possible",
                "strict=True raises an error instead"
                + ("; the keys have a wrapper's prefix: load into `model.module`, or strip it" if prefix else ""),
                step=1,
                ranks=(rank,),
                line=call.line,
            )
    return None


def saved_whole(case: Comparison) -> Broken | None:
    """Find a file of a model in which trained parameters are missing."""
    saves = [(rank, number, call) for rank, record in case.records.items() for number, call in record.calls("save")]
    if not saves:
        raise NotObservable("nothing was saved with torch.save")
    for rank, number, call in saves:
        if call.live and number <= len(case.records[rank].steps):
            return Broken(
                f"another thread writes {call.path or 'a file'} from the tensors that training changes, while training "
                f"continues to step {number}: the file may have parts of several steps",
                "likely",
                "copy the tensors before the next step (`copy.deepcopy(model.state_dict())`), or let "
                "torch.distributed.checkpoint.async_save do it",
                step=number,
                ranks=(rank,),
                line=call.line,
            )
        if call.missing:
            return Broken(
                f"the file saved at {call.line} has parameters of the model, but not "
                f"{some_of(call.missing, MOST_NAMES)}, which was trained too",
                "likely" if call.partly else "possible",
                "save `model.state_dict()` as it is; tensors that share a storage are not therefore the same. A whole "
                "layer, such as a head for training alone, may be left out on purpose",
                step=number,
                ranks=(rank,),
                line=call.line,
            )
    return None


def optimizer_restored(case: Comparison) -> Broken | None:
    """Find a checkpoint whose optimizer was read and not used."""
    seen = False
    for rank, record in case.records.items():
        loads = [call for number, call in record.calls("load") if number == 1]
        restored = any(True for _ in record.calls("load_optimizer"))
        for call in loads:
            keys = [key for key in call.keys if "optim" in key.lower()]
            seen = seen or bool(keys)
            models = [loaded for _, loaded in record.calls("load_model")]
            if keys and not restored and models:
                # with another head or another learning rate, it is the beginning of another training
                rates = {rate for table in record.tables for step in record.steps_of(table)[:1] for rate in step.lr}
                goes_on = not any(each.missing for each in models) and rates & set(call.rates)
                return Broken(
                    f"the checkpoint read at {call.line} has {keys[0]!r}, and no optimizer loaded it: momentum and "
                    "second moments begin at zero",
                    "likely" if goes_on else "possible",
                    f"`optimizer.load_state_dict(checkpoint[{keys[0]!r}])`, and the same for the scheduler",
                    step=1,
                    ranks=(rank,),
                    line=call.line,
                )
    again, loaded = _rate_begins_again(case)
    again = _moments_of_others(case) or again or _scale_begins_again(case) or _made_again(case)
    if again is None and not seen and not loaded:
        raise NotObservable("no checkpoint with an optimizer was read with torch.load before the first step")
    return again


def _rate_begins_again(case: Comparison) -> tuple[Broken | None, bool]:
    """Find a restored optimizer whose next step has the learning rate from before; tell whether one was restored."""
    loaded = False
    for rank, record in case.records.items():
        schedules = [number for number, _ in record.calls("load_schedule")]
        for number, call in record.calls("load_optimizer"):
            table = record.tables.get(call.optimizer) if call.optimizer is not None else None
            steps = record.steps_of(call.optimizer) if call.optimizer is not None else []
            loaded = loaded or table is not None
            first = next((step for step in steps if step.number >= number), None)
            if table is None or table.schedule is None or first is None or number in schedules:
                continue
            if first.lr == call.rates_before and first.lr != call.rates and len(first.lr) == len(call.rates):
                return Broken(
                    f"the optimizer's state was loaded at {call.line} with a learning rate of {call.rates[0]:.6g}, and "
                    f"step {first.number} has {first.lr[0]:.6g}, as before the load: the scheduler made at "
                    f"{table.schedule} begins again",
                    "likely",
                    "restore the scheduler too: save its `state_dict()` and load it after the optimizer's",
                    step=first.number,
                    ranks=(rank,),
                    line=table.schedule,
                ), True
    return None, loaded


def _moments_of_others(case: Comparison) -> Broken | None:
    """Find an optimizer whose parameters were given the state that other parameters had when it was saved."""
    for rank, record in case.records.items():
        saved: dict[int, str] = {}
        for number, call in record.calls("state_of_optimizer", "load_optimizer"):
            table = record.tables.get(call.optimizer) if call.optimizer is not None else None
            parameters = table.parameters if table is not None else []
            names = [each.names[0] if each.names else "" for each in parameters]
            known = [(name, bits) for name, bits in zip(names, call.moments, strict=False) if name and bits]
            if call.call == "state_of_optimizer":
                saved.update({bits: name for name, bits in known})
                continue
            wrong = [(name, saved[bits]) for name, bits in known if saved.get(bits, name) != name]
            if len(wrong) > 1:
                name, owner = wrong[0]
                return Broken(
                    f"the optimizer's state that was loaded at {call.line} gives {name} the moments of {owner}, and so "
                    f"for {len(wrong)} parameters: the state is loaded by the parameters' order, which is another one",
                    "certain",
                    "make the optimizer with the parameters in the same order as when its state was saved",
                    step=number,
                    ranks=(rank,),
                    line=call.line,
                )
    return None


def _scale_begins_again(case: Comparison) -> Broken | None:
    """Find a restored optimizer whose next step has the loss scale of a new GradScaler."""
    for rank, record in case.records.items():
        scaler_loads = {number for number, _ in record.calls("load_scaler")}
        files = [key for _, call in record.calls("load") for key in call.keys if "scaler" in key.lower()]
        scales = [(number, call.value) for number, call in record.calls("scaled_step") if call.value is not None]
        for number, call in record.calls("load_optimizer"):
            before = next((scale for at, scale in reversed(scales) if at < number), None)
            now = next((scale for at, scale in scales if at >= number), None)
            if not call.updates or number in scaler_loads or now is None or now == before:
                continue
            known = f"; the file has {files[0]!r}" if files else ""
            if before is not None:
                known = f"; it was {before:g}"
            return Broken(
                f"the optimizer's state was loaded at {call.line} after {call.updates} updates, and no GradScaler's: "
                f"the loss scale begins again at {now:g}{known}",
                "likely" if known else "possible",
                "save `scaler.state_dict()` with the optimizer's, and load it with it: too large a scale skips "
                "steps, too small a scale loses gradients",
                step=number,
                ranks=(rank,),
                line=call.line,
            )
    return None


def _made_again(case: Comparison) -> Broken | None:
    """Find optimizers that one line makes of the same parameters one after the other, each without moments."""
    for rank, record in case.records.items():
        by_line: dict[tuple[str, ...], list[int]] = {}
        for number, table in record.tables.items():
            names = [each.names[0] for each in table.parameters if each.names]
            if table.made is not None and names and len(record.steps_of(number)) > 1:
                by_line.setdefault((str(table.made), table.name, *names), []).append(number)
        restored = {call.optimizer for _, call in record.calls("load_optimizer")}
        for optimizers in by_line.values():
            pairs = [*pairwise(sorted(optimizers, key=lambda each: record.steps_of(each)[0].number))]
            renewed = [new for old, new in pairs if new not in restored and _takes_over(record, old, new)]
            if not renewed or len(renewed) < len(pairs):
                continue
            first, line = record.steps_of(renewed[0])[0], record.tables[renewed[0]].made
            return Broken(
                f"the optimizer of {some_of(record.tables[renewed[0]].parameters[0].names[:1], 1)} and others is made "
                f"{len(optimizers)} times at {line}, each time for the weights that the one before has left: momentum "
                "and second moments begin at zero",
                "likely" if len(renewed) > 1 else "possible",
                "make the optimizer once, before the loop over epochs",
                step=first.number,
                ranks=(rank,),
                line=line,
            )
    return None


def _takes_over(record: RankRecord, old: int, new: int) -> bool:
    """True if an optimizer with moments has taken its last step, and a new one continues with its weights."""
    last, first = record.steps_of(old)[-1], record.steps_of(new)[0]
    left = [None if each is None else each.bits for each in last.weights]
    return last.number < first.number and any(last.state) and bool(left) and left == first.before


def weights_loaded(case: Comparison) -> Broken | None:
    """Find weights of a file that are not those that training begins with."""
    seen = False
    for rank, record in case.records.items():
        for number, call in record.calls("load_model", "loaded", "loaded_aside", "loaded_masters"):
            seen = True
            lost = _weights_lost_by(call)
            if lost is not None:
                return Broken(*lost, step=number, ranks=(rank,), line=call.line)
    if not seen:
        raise NotObservable("no model was loaded with load_state_dict")
    return None


def _weights_lost_by(call: Call) -> tuple[str, Literal["likely", "possible"], str] | None:
    """Return what is lost of a load, how surely, and what to do."""
    names = some_of(call.lost, MOST_NAMES)
    if call.ignored and not call.missing and not call.unexpected:
        return (
            f"load_state_dict at {call.line} changes nothing, and none of the weights that torch.load read before is "
            f"in the model, although the file has {some_of(call.ignored, MOST_NAMES)} of the same shapes: training "
            "begins with the model's own first weights",
            "likely",
            "compare the keys of the file with `model.state_dict()`: a prefix, such as `module.`, makes a filter drop "
            "all of them. Load the file's state itself, with strict=True",
        )
    if call.moved:
        one, other = call.moved[0]
        return (
            f"load_state_dict at {call.line} gives {one} the numbers that the file has for {other}"
            + (f", and so for {len(call.moved) - 1} more" if len(call.moved) > 1 else "")
            + ", although the file has all names of the model",
            "likely",
            "load the file's state with its own keys; if they must be renamed, compare some tensors after the load",
        )
    if call.call == "loaded" and call.part >= _MOST_OF:
        return (
            f"the weights that load_state_dict has loaded are others when the first step after it begins: {names}. "
            f"{call.line} has written over them",
            "likely",
            "initialize a model before its weights are loaded, not after",
        )
    if call.call == "loaded_masters" and call.part >= _MOST_OF:
        return (
            f"the weights loaded at {call.line} are not those of the copies that the optimizer holds, {names}: its "
            "first step is copied over what was loaded",
            "likely",
            "make the copies (the master weights) after the load, or load into them too",
        )
    if call.call == "loaded_aside" and call.part >= _MOST_OF:
        where = "no longer exists" if call.gone else "neither trains nor was called so far"
        return (
            f"the weights loaded at {call.line} are in a model that {where} when the first step after it begins; the "
            f"model that trains has the same parameters, {names}, with other numbers",
            "likely" if call.gone else "possible",
            "load the weights into the model that trains, after it was made for the last time; a copy, such as an "
            "average, is loaded next to it, not instead of it",
        )
    return None


RULES = (
    Rule("one-writer", "one rank writes a file", one_writer),
    Rule("saved", "a file of a model has everything that was trained, as it was", saved_whole),
    Rule("keys", "a loaded model has the keys of the file", loaded_keys),
    Rule("loaded", "training begins with the weights that were loaded", weights_loaded),
    Rule("restored", "a resume restores the optimizer and its learning rate", optimizer_restored),
)
