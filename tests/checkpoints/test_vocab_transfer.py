"""Transfer to another vocabulary: rows are copied by piece, and new pieces average old ones."""

import json

from etils import epath
import foreign
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio
import toy

from t2t import __main__ as command
from t2t import sharding
from t2t.checkpoints import pretrained, tensor_writer, vocab_transfer
from t2t.checkpoints.vocab_transfer import Pieces
from t2t.checkpoints.warm_start import Taken
from t2t.data import vocabularies
from t2t.data.vocabularies import token_mapping, training
from t2t.models.head_config import HeadConfig

BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
OLD = [*BERT, "heart", "card", "the", "of", "i", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"), "##io", "##logy"]
NEW = [*OLD, "cardiology", "##iology", "[NEW]", "heartß"]


def wordpiece(path, pieces):
  path.parent.mkdir(exist_ok=True, parents=True)
  path.write_text("".join(f"{piece}\n" for piece in pieces))
  return vocabularies.load(str(path), extra_ids=0)


def test_a_new_piece_is_spelled_in_the_old(tmp_path):
  """A word start is spelled as text, other pieces as continuations; special pieces are fresh."""
  old, new = wordpiece(tmp_path / "old" / "vocab.txt", OLD), wordpiece(tmp_path / "new" / "vocab.txt", NEW)
  found = token_mapping.old_pieces(old, new)
  assert found[: len(OLD)] == [[i] for i in range(len(OLD))]
  at = OLD.index
  assert found[len(OLD) :] == [[at("card"), at("##io"), at("##logy")], [at("##io"), at("##logy")], [], []]


def test_pieces_may_move(tmp_path):
  """A smaller vocabulary in another order; sentinels are matched by name."""
  old = wordpiece(tmp_path / "old" / "vocab.txt", OLD)
  kept = [*BERT, "##logy", "heart"]
  found = token_mapping.old_pieces(old, wordpiece(tmp_path / "new" / "vocab.txt", kept))
  assert found == [[OLD.index(piece)] for piece in kept]
  few, many = seqio.ByteVocabulary(extra_ids=2), seqio.ByteVocabulary(extra_ids=4)
  assert token_mapping.old_pieces(few, many) == [*([i] for i in range(259)), [], [], [259], [260]]


def test_parts_of_characters_are_found_by_their_bytes(tmp_path):
  """Byte-level BPE of other scripts has other parts of characters; unknown bytes are fresh."""
  draw = np.random.default_rng(1)
  found = []
  for name, letters in (("old", range(0x905, 0x93A)), ("new", range(0xE01, 0xE2F))):
    both = [*letters, *range(0x430, 0x450)]
    lines = [" ".join("".join(map(chr, draw.choice(both, 5))) for _ in range(2)) for _ in range(1000)]
    path = training.train_bpe(lines, size=380, output_dir=tmp_path / name)
    found.append(vocabularies.load(str(path), extra_ids=0))
  old, new = found
  pieces = [[v.tokenizer.id_to_token(i) for i in range(v.vocab_size)] for v in found]
  parts = [i for i, text in enumerate(vocabularies.token_texts(new)) if "\N{REPLACEMENT CHARACTER}" in text]
  rows = token_mapping.old_pieces(old, new)
  assert len([i for i in parts if not rows[i]]) > 3  # absent from the old vocabulary
  for i in parts:
    assert [pieces[0][row] for row in rows[i]] == [pieces[1][i]] * (pieces[1][i] in pieces[0])


@pytest.mark.parametrize("dimension", [0, 1])
def test_rows_are_kept_or_averaged(dimension):
  """Computed by hand; rows without a piece, and after the vocabulary, are fresh."""
  table = np.arange(12.0, dtype=np.float32).reshape(6, 2) ** 2
  fresh = -np.ones((5, 2), np.float32)
  pieces = Pieces([[4], [0, 1, 5], [], [2, 3]])
  expected = [table[4], (table[0] + table[1] + table[5]) / 3, fresh[2], (table[2] + table[3]) / 2, fresh[4]]
  turn = lambda x: jnp.asarray(x.T if dimension else x)
  found = jax.jit(lambda x, y: pieces.rows(x, y, dimension))(turn(table), turn(fresh))
  np.testing.assert_allclose(found, turn(np.stack(expected)), rtol=1e-6)
  counted = "of 4 ids, including special pieces and config.data.extra_ids"
  assert str(pieces) == f"{counted}, 1 unchanged, 2 as the mean of 2.5 old pieces, 1 fresh"
  assert pieces.changes and not Pieces([[0], [1]]).changes


def test_rows_that_are_made_are_not_the_checkpoints():
  """Changed rows count as fresh, so that they must be trained; an unchanged vocabulary does not."""
  params = {"embed": {"table": jax.ShapeDtypeStruct((2, 4), jnp.float32)}}
  fresh_in = lambda old: Taken(params, {}, None, {}, Pieces(old), {"embed/table": 0}).fresh_in(params)
  assert fresh_in([[1], [0]]) == ["embed/table"] and fresh_in([[0], [1]]) == []


def test_what_has_a_row_for_each_id():
  """The embedding and the head, at any path, and the bias of a boundary head, but not of a class head."""
  heads = (HeadConfig("sbo", 3, "boundary"), HeadConfig("nli", 3))
  model = toy.config(architecture="encoder_only", num_decoder_layers=0, heads=heads)
  paths = ("embed/table", "generator/embed/table", "head/projection", "head/bias", "heads/sbo/bias", "heads/nli/bias")
  expected = {"embed/table": 0, "generator/embed/table": 0, "head/projection": 1, "head/bias": 0, "heads/sbo/bias": 0}
  assert vocab_transfer.dimensions((*paths, "encoder/norm/bias", "embed/positions"), model) == expected


@pytest.mark.exhaustive
def test_the_command(tmp_path, capsys):
  """A BERT with more pieces, without updates: copied and averaged rows, also in the head."""
  model = toy.KINDS["bert"]
  old = wordpiece(tmp_path / "old" / "vocab.txt", OLD)
  new = wordpiece(tmp_path / "new" / "vocab.txt", NEW)
  params = foreign.random_params(model)
  tensor_writer.save(foreign.in_memory(model, params), epath.Path(tmp_path / "bert"))
  vocabularies.save(old, epath.Path(tmp_path / "bert" / "vocabulary"))
  (tmp_path / "text.txt").write_text("\n".join(f"the cardiology of the heart {'i' * i}" for i in range(200)) + "\n")
  arguments = [
    *(
      "train",
      "--config=dapt_domain",
      f"--config.init.checkpoint={tmp_path / 'bert'}",
      "--config.init.use_model_config=True",
    ),
    *(f"--config.data.vocabulary={tmp_path / 'new' / 'vocab.txt'}", "--config.model.vocab_size=64"),
    *(f"--config.data.files={tmp_path / 'text.txt'}", "--config.data.inputs_length=8", "--config.data.num_streams=1"),
    *(
      "--config.train.batch_size=8",
      "--config.train.steps=1",
      "--config.eval.batches=1",
      "--config.eval.num_logged_samples=0",
    ),
    *("--config.mesh.fsdp=4", "--config.mesh.tensor=2", "--config.model.dropout_rate=0.0"),
    *("--config.optimizer.name=sgd", "--config.optimizer.learning_rate=0.0", f"--workdir={tmp_path / 'run'}"),
  ]
  assert command.main(arguments) == 2
  assert "by their tokens, give config.init.transfer_vocab=True" in capsys.readouterr().err
  assert command.main([*arguments, "--config.init.transfer_vocab=True"]) == 0
  said = " ".join(capsys.readouterr().err.split())
  assert (
    "rows by their pieces: of" in said and f"{len(OLD)} unchanged, 2 as the mean of 2.5 old pieces, 2 fresh" in said
  )
  mesh = sharding.make_mesh({"data": 8})
  saved = toy.flat(pretrained.load(pretrained.read_source(str(tmp_path / "run")), mesh).params)
  made = token_mapping.old_pieces(old, new)
  for path in ("embed/table", "head/bias"):
    for row, pieces in enumerate(made):
      if pieces:
        np.testing.assert_allclose(saved[path][row], params[path][pieces].mean(0), rtol=1e-6)
  assert np.all(np.std(saved["embed/table"][len(OLD) + 2 :], axis=1) > 0)
  np.testing.assert_array_equal(saved["encoder/layers/mlp/up"], params["encoder/layers/mlp/up"])
  assert json.loads((tmp_path / "run" / "config.json").read_text())["init"]["transfer_vocab"] is True
