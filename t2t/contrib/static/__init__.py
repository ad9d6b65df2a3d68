"""Static word vectors: word2vec, GloVe, fastText, and baselines on them."""
