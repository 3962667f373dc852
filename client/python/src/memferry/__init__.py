"""memferry: plans, measures and drives the training of models larger than a GPU's memory.

    with memferry.Client() as client:
        print(client.plan("gpt2", device_memory="2GiB").table())

docs/PYTHON.md is the manual."""
from .client import Client
from .data import (IGNORED, Adam, Alternative, Constraints, Explanation, ForwardResult, Loaded,
                   Loss, Measurement, MemoryByPurpose, Model, ModelLike, Pin, Plan, PlanSummary,
                   Prediction, Profile, Progress, RunEvent, Sample, Saved, SessionInfo, Status,
                   Step, StepReport, Trial, Unit, UnitPlan, Workload)
from .errors import (BusyError, CancelledError, CorruptError, DeadlineError, DeniedError,
                     DeviceError, DoesNotFitError, ExistsError, FileError, InternalError,
                     InvalidError, MemferryError, NoDeviceMemoryError, NoMemoryError,
                     NotFoundError, UnavailableError, UnsupportedError)
from .module import module_units
from .session import Session

__all__ = ["IGNORED", "Adam", "Alternative", "BusyError", "CancelledError", "Client",
           "Constraints", "CorruptError", "DeadlineError", "DeniedError", "DeviceError",
           "DoesNotFitError", "ExistsError", "Explanation", "FileError", "ForwardResult",
           "InternalError", "InvalidError", "Loaded", "Loss", "Measurement", "MemferryError",
           "MemoryByPurpose", "Model", "ModelLike", "NoDeviceMemoryError", "NoMemoryError",
           "NotFoundError", "Pin", "Plan", "PlanSummary", "Prediction", "Profile", "Progress",
           "RunEvent", "Sample", "Saved", "Session", "SessionInfo", "Status", "Step", "StepReport",
           "Trial", "UnavailableError", "Unit", "UnitPlan", "UnsupportedError", "Workload",
           "module_units"]
