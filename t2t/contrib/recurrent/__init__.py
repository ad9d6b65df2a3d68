"""Recurrent language models: LSTM and QRNN layers, AWD-LSTM, ELMo."""
