"""Every config key with its default. An overlay changes some keys; `--config.SECTION.KEY=VALUE` changes one.

t2t/configuration/schema.py declares keys, defaults and meanings; docs/config_keys.md lists them.
"""

from ml_collections import ConfigDict

from t2t.configuration import renamed_keys, schema
from t2t.models import presets


def get_config() -> ConfigDict:
  """Returns a small T5 1.1 with span corruption, without a source of text."""
  config = ConfigDict({"model": {**presets.t5_1_1("small"), "remat": "none"}, **schema.defaults()})
  config = renamed_keys.accept_earlier_names(config)
  config.lock()
  config.data.benchmark_dirs.unlock()  # a config may name any: config.data.benchmark_dirs.superglue = "SuperGLUE"
  config.data.sources.unlock()  # likewise: config.data.sources.english = {"files": "en/*.txt", "rate": 2.0}
  config.init.others.unlock()
  return config
