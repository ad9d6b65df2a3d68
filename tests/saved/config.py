"""A recipe as the README had it before config sections were typed records."""

from t2t.configs import tiny


def get_config():
  config = tiny.get_config()
  config.model.num_encoder_layers = 2
  config.optimizer.name = "adafactor"
  config.optimizer.schedule = "inverse_sqrt"
  return config
