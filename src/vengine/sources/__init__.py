"""Where models come from. Nothing of a model is imported, executed or unpickled to read it."""

from vengine.sources.feeds import example_feeds
from vengine.sources.opening import open_source
from vengine.sources.outputs import OutputTemplate, describe_output, rebuild_output
from vengine.sources.tokenizer_files import pad_id
from vengine.sources.torch_module import from_module, output_template

__all__ = [
    "OutputTemplate",
    "describe_output",
    "example_feeds",
    "from_module",
    "open_source",
    "output_template",
    "pad_id",
    "rebuild_output",
]
