"""Recurrent models: LSTM, GRU and QRNN layers, AWD-LSTM, ELMo, Skip-Thought, SA-LSTM, CoVe."""
