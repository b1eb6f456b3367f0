"""RunConfig and its sections: the contents of a run file, read and checked before anything starts."""

from frog.core.config.load import (
    from_dict,
    load_model_config,
    load_model_sizes,
    load_run_config,
    parse_run_config,
    to_dict,
)
from frog.core.config.model import ModelConfig
from frog.core.config.optimizers import OptimizerConfig
from frog.core.config.run_config import (
    CheckpointConfig,
    DataConfig,
    EvalConfig,
    ModelSource,
    RunConfig,
    TrainConfig,
)
from frog.core.config.strategy import StrategyConfig

__all__ = [
    "CheckpointConfig",
    "DataConfig",
    "EvalConfig",
    "ModelConfig",
    "ModelSource",
    "OptimizerConfig",
    "RunConfig",
    "StrategyConfig",
    "TrainConfig",
    "from_dict",
    "load_model_config",
    "load_model_sizes",
    "load_run_config",
    "parse_run_config",
    "to_dict",
]
