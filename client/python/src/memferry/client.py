"""A connection to the daemon: plans, measurements, sessions, jobs.

A client may be used by many threads, not on both sides of a fork(). Calls wait for their answer;
Ctrl-C cancels the one that waits. All of them fail with a MemferryError."""
from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

from google.protobuf import json_format

from . import data, errors
from ._channel import Channel
from ._convert import fill, read
from ._size import parse_size
from .session import Session

ProgressCallback = Callable[[data.Progress], None]


def model_of(model: data.ModelLike) -> data.Model:
    """An existing folder (made absolute) or config.json before a preset of that name."""
    if isinstance(model, data.Model):
        return model
    if isinstance(model, (str, os.PathLike)):
        path = os.fspath(model)
        if os.path.isdir(path):
            return data.Model(folder=os.path.abspath(path))
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                return data.Model(config_json=file.read())
        return data.Model(preset=path)
    return data.Model(units=tuple(model))


def _model_fields(model: data.ModelLike) -> dict[str, Any]:
    found = model_of(model)
    given: dict[str, Any] = {name: getattr(found, name)
                             for name in ("folder", "preset", "config_json")
                             if getattr(found, name)}
    if found.units:
        given["units"] = {"units": found.units}
    if len(given) != 1:
        raise errors.InvalidError("a model is one of folder, preset, config_json, units; given: "
                                  + (", ".join(given) or "none"))
    return given


def _size(name: str, size: int | str) -> int:
    try:
        return parse_size(size)
    except ValueError as error:
        raise errors.InvalidError(f"{name}: {error}") from None


class Client:
    """`address`: "unix:/path" or "host:port"; None = $MEMFERRY_HOST, else the user's socket, else
    the system's. Asks the daemon for its status, so a client that was made has its daemon."""

    def __init__(self, address: str | None = None) -> None:
        self._channel = Channel(address)
        self.address = self._channel.address
        try:
            self.status()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Calls in flight end with CancelledError; sessions live on until their lease ends."""
        self._channel.close()

    # Plans

    def plan(self, model: data.ModelLike, *, micro_batch: int = 0, seq_len: int = 0,
             accumulation: int = 0, no_clip: bool = False, device_memory: int | str = 0,
             host_memory: int | str = 0, strategy: data.Strategy = "auto",
             pins: Iterable[data.Pin] = (), effort: data.Effort = "measure", hardware: str = "",
             batch: int = 0, tune_micro_batch: bool = False) -> data.Plan:
        """The fastest step that fits. DoesNotFitError names the smallest budget that works.

        Zeros are defaults, see Workload; budgets are bytes or "8GiB". `effort`: "cached" = from
        the store or NotFoundError; "estimate" uses no device; "measure" measures what is missing
        first. `hardware`: another machine's name, for which nothing can be measured. `batch`:
        sequences in one optimizer step, in place of `accumulation`; with `tune_micro_batch` the
        micro-batch with the most tokens a second is chosen."""
        answer = self._ask("PlanService/GetPlan", {
            "model": _model_fields(model),
            "workload": data.Workload(micro_batch, seq_len, accumulation, no_clip),
            "constraints": _constraints(device_memory, host_memory, strategy, pins),
            "effort": "estimate" if hardware and effort == "measure" else effort,
            "hardware": hardware, "batch": batch, "tune_micro_batch": tune_micro_batch})
        return read(data.Plan, answer.plan, how=answer.how, miss=answer.miss,
                    age_seconds=answer.age_seconds, measure_seconds=answer.measure_seconds,
                    solve_seconds=answer.solve_seconds,
                    trials=tuple(read(data.Trial, trial) for trial in answer.trials))

    def show_plan(self, plan_id: str) -> data.Plan:
        """A stored plan, by its id or a unique prefix of at least 6 digits."""
        return read(data.Plan, self._ask("PlanService/ShowPlan", {"id": plan_id}).plan)

    def list_plans(self) -> tuple[data.PlanSummary, ...]:
        return tuple(read(data.PlanSummary, plan)
                     for plan in self._ask("PlanService/ListPlans", {}).plans)

    def delete_plan(self, plan_id: str) -> None:
        self._ask("PlanService/DeletePlan", {"id": plan_id})

    def explain_plan(self, plan_id: str, unit: str) -> data.Explanation:
        """What each alternative for one unit would cost, all else equal."""
        return read(data.Explanation,
                    self._ask("PlanService/ExplainPlan", {"id": plan_id, "unit": unit}))

    def export_plan(self, plan_id: str) -> str:
        """The plan with its model as JSON, for a file."""
        return str(self._ask("PlanService/ExportPlan", {"id": plan_id}).json)

    def import_plan(self, text: str, *, model: data.ModelLike | None = None,
                    hardware: str = "") -> data.Plan:
        """The way back: checked against the model, predicted anew with this machine's costs."""
        return read(data.Plan, self._ask("PlanService/ImportPlan", {
            "json": text, "model": None if model is None else _model_fields(model),
            "hardware": hardware}).plan)

    # The machine

    def status(self) -> data.Status:
        return read(data.Status, self._ask("HardwareService/GetStatus", {}))

    def measure(self, model: data.ModelLike, *, micro_batch: int = 0, seq_len: int = 0,
                accumulation: int = 0, seconds_max: float = 0.0, again: bool = False,
                progress: ProgressCallback | None = None) -> data.Profile:
        """Measures what is not yet known of every choice for this model; what is left after
        `seconds_max` (0 = 60) is estimated. Cancelling keeps what was measured."""
        request = fill(self._channel.request("ProfileService/Measure"), {
            "model": _model_fields(model),
            "workload": data.Workload(micro_batch, seq_len, accumulation),
            "seconds_max": seconds_max, "again": again})
        for news in self._channel.stream("ProfileService/Measure", request):
            if news.HasField("profile"):
                return read(data.Profile, news.profile)
            if progress is not None and news.HasField("progress"):
                at = news.progress
                progress(data.Progress(at.what, at.done / at.total if at.total else 0.0))
        raise errors.CorruptError("the daemon answered without a profile")

    # Sessions

    def create_session(self, model: data.ModelLike | None = None, *, micro_batch: int = 0,
                       seq_len: int = 0, accumulation: int = 0, no_clip: bool = False,
                       device_memory: int | str = 0, host_memory: int | str = 0,
                       strategy: data.Strategy = "auto", pins: Iterable[data.Pin] = (),
                       effort: data.Effort = "measure", plan_id: str = "", seed: int = 0,
                       random_init: bool = False, lease_seconds: float = 0.0,
                       progress: ProgressCallback | None = None) -> Session:
        """Plans (or takes `plan_id`), reserves all memory, loads or initialises the weights.

        `seed` and `random_init` are for weights that are not there or not wanted. Without any call
        the session ends after `lease_seconds` (10..86400; 0 = 600)."""
        request = fill(self._channel.request("TrainingService/CreateSession"), {
            "model": None if model is None else _model_fields(model),
            "workload": data.Workload(micro_batch, seq_len, accumulation, no_clip),
            "constraints": _constraints(device_memory, host_memory, strategy, pins),
            "effort": effort, "plan_id": plan_id, "seed": seed, "random_init": random_init,
            "lease_seconds": lease_seconds})
        for news in self._channel.stream("TrainingService/CreateSession", request):
            if news.HasField("session"):
                return Session(self._channel, read(data.SessionInfo, news.session))
            if progress is not None and news.HasField("progress"):
                progress(read(data.Progress, news.progress))
        raise errors.CorruptError("the daemon answered without a session")

    def attach_session(self, session_id: str) -> Session:
        """Goes on with a session that was made elsewhere; nobody else may drive it."""
        answer = self._ask("TrainingService/GetSession", {"session_id": session_id})
        return Session(self._channel, read(data.SessionInfo, answer.session))

    def list_sessions(self, *, past: bool = False) -> tuple[data.SessionInfo, ...]:
        """Sessions and jobs; `past`: also those that ended."""
        return tuple(read(data.SessionInfo, session) for session in
                     self._ask("TrainingService/ListSessions", {"past": past}).sessions)

    # Jobs

    def run(self, config: Mapping[str, Any] | str | os.PathLike[str], *, base_folder: str = "",
            resume: str = "") -> Iterator[data.RunEvent]:
        """Starts a job when the iteration begins and reports it until it ends. `config`: the run
        config (docs/RUNS.md) or its file; relative paths in it start at `base_folder`, else at the
        file's folder. Leaving the iteration leaves the job running: watch() attaches again. A job
        that failed raises InternalError after its last event."""
        if isinstance(config, Mapping):
            text, folder = json.dumps(config), os.getcwd()
        else:
            with open(config, encoding="utf-8") as file:
                text = file.read()
            folder = os.path.dirname(os.path.abspath(config))
        return self._events("Run", {"config_json": text, "resume": resume,
                                    "base_folder": os.path.abspath(base_folder or folder)})

    def watch(self, session_id: str) -> Iterator[data.RunEvent]:
        """Attaches to a job. Otherwise as run()."""
        return self._events("Watch", {"session_id": session_id})

    def stop_run(self, session_id: str, *, discard: bool = False) -> None:
        """Ends a job after its present step, saving a checkpoint unless `discard`."""
        self._ask("TrainingService/StopRun", {"session_id": session_id, "discard": discard})

    # Everything else

    def query(self, method: str, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Any unary method of the contract ("PlanService/ListModels"), messages as dictionaries
        with the field names of the .proto files and the full names of enumerators."""
        message = self._channel.request(method)
        try:
            json_format.ParseDict(dict(request or {}), message)
        except json_format.ParseError as error:
            raise errors.InvalidError(f"{method}: {error}") from None
        found: dict[str, Any] = json_format.MessageToDict(
            self._channel.call(method, message), preserving_proto_field_name=True)
        return found

    def _ask(self, method: str, fields: Mapping[str, Any]) -> Any:
        return self._channel.call(method, fill(self._channel.request(method), fields))

    def _events(self, verb: str, fields: Mapping[str, Any]) -> Iterator[data.RunEvent]:
        method = "TrainingService/" + verb
        request = fill(self._channel.request(method), fields)
        for news in self._channel.stream(method, request):
            event = read(data.RunEvent, news)
            yield event
            if event.finished is not None and event.finished.state == "failed":
                raise errors.InternalError(event.finished.error, "RUN_FAILED")


def _constraints(device_memory: int | str, host_memory: int | str, strategy: data.Strategy,
                 pins: Iterable[data.Pin]) -> data.Constraints:
    return data.Constraints(_size("device_memory", device_memory),
                            _size("host_memory", host_memory), strategy, tuple(pins))
