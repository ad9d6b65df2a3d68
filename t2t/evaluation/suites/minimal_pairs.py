"""Minimal pairs: a good and a bad sentence in each JSON line (BLiMP, BabyLM's supplement, and a user's own)."""

from collections.abc import Sequence

from t2t.evaluation.suites import items as items_lib
from t2t.evaluation.suites.items import OptionItem
from t2t.inference.text_scores import ScoredText
from t2t.runtime import hosts

# Warstadt et al. 2020, https://github.com/alexwarstadt/blimp.
BLIMP = (
  *("adjunct_island", "anaphor_gender_agreement", "anaphor_number_agreement", "animate_subject_passive"),
  *("animate_subject_trans", "causative", "complex_NP_island"),
  *("coordinate_structure_constraint_complex_left_branch", "coordinate_structure_constraint_object_extraction"),
  *("determiner_noun_agreement_1", "determiner_noun_agreement_2", "determiner_noun_agreement_irregular_1"),
  *("determiner_noun_agreement_irregular_2", "determiner_noun_agreement_with_adj_2"),
  *("determiner_noun_agreement_with_adj_irregular_1", "determiner_noun_agreement_with_adj_irregular_2"),
  *("determiner_noun_agreement_with_adjective_1", "distractor_agreement_relational_noun"),
  *("distractor_agreement_relative_clause", "drop_argument", "ellipsis_n_bar_1", "ellipsis_n_bar_2"),
  *("existential_there_object_raising", "existential_there_quantifiers_1", "existential_there_quantifiers_2"),
  *("existential_there_subject_raising", "expletive_it_object_raising", "inchoative", "intransitive"),
  *("irregular_past_participle_adjectives", "irregular_past_participle_verbs"),
  *("irregular_plural_subject_verb_agreement_1", "irregular_plural_subject_verb_agreement_2"),
  *("left_branch_island_echo_question", "left_branch_island_simple_question"),
  *("matrix_question_npi_licensor_present", "npi_present_1", "npi_present_2", "only_npi_licensor_present"),
  *("only_npi_scope", "passive_1", "passive_2", "principle_A_c_command", "principle_A_case_1", "principle_A_case_2"),
  *("principle_A_domain_1", "principle_A_domain_2", "principle_A_domain_3", "principle_A_reconstruction"),
  *("regular_plural_subject_verb_agreement_1", "regular_plural_subject_verb_agreement_2"),
  *("sentential_negation_npi_licensor_present", "sentential_negation_npi_scope", "sentential_subject_island"),
  *("superlative_quantifiers_1", "superlative_quantifiers_2", "tough_vs_raising_1", "tough_vs_raising_2"),
  *("transitive", "wh_island", "wh_questions_object_gap", "wh_questions_subject_gap"),
  *("wh_questions_subject_gap_long_distance", "wh_vs_that_no_gap", "wh_vs_that_no_gap_long_distance"),
  *("wh_vs_that_with_gap", "wh_vs_that_with_gap_long_distance"),
)
SUPPLEMENT = ("hypernym", "qa_congruence_easy", "qa_congruence_tricky", "subject_aux_inversion", "turn_taking")


def own(path: str, where: str) -> list[OptionItem]:
  """Reads any minimal pairs: a .jsonl file or a folder of them, each line with sentence_good and sentence_bad.

  The group of a pair is its "UID", or the name of its file.
  """
  return _pairs(path, where, ())


def blimp(path: str, where: str) -> list[OptionItem]:
  """Reads the 67 files of BLiMP, whole or filtered."""
  return _pairs(path, where, BLIMP)


def supplement(path: str, where: str) -> list[OptionItem]:
  """Reads the five files of BabyLM's supplement to BLiMP."""
  return _pairs(path, where, SUPPLEMENT)


def _pairs(path: str, where: str, expected: Sequence[str]) -> list[OptionItem]:
  pairs, equal = [], []
  for file in items_lib.files(path, where=where, expected=expected):
    for place, row in items_lib.objects(file, where=where):
      sentences = [items_lib.field(row, f"sentence_{kind}", place) for kind in ("good", "bad")]
      if sentences[0] == sentences[1]:
        equal.append(place)
      has_group = "UID" in row
      group = str(items_lib.field(row, "UID", place, (str, int)) if has_group else file.name.removesuffix(".jsonl"))
      pairs.append(OptionItem(tuple(ScoredText("", text) for text in sentences), (group,), sentences[0]))
  if equal:
    hosts.log_once(f"{len(equal):,} of {len(pairs):,} pairs have equal sentences, and tie; the first: {equal[0]}")
  return pairs
