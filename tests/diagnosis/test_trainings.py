"""Diagnosis on some of the small trainings; ``benchmarks/diagnosis.py`` has the figures of all."""

from __future__ import annotations

import pytest
from trainings import SETS, cases
from trainings.case import Case
from trainings.scoring import scored

BROKEN = (
    "cancer_statistics_fixed", "wine_selu_two_softmaxes", "denoise_cut", "reverse_unclipped_climbs",
    "unet_empty_mask", "upscale_not_given", "one_unit_no_zero_grad", "waves_deep_sigmoids",
    "zero_init_bfloat16", "mixup_decays", "topic_all_alike", "set_spread_millimetres",
    "digit_sparse_climbs", "films_liked_stars_as_probabilities", "flowers_raw_log_softmax_missing",
    "friedman_broadcast", "friedman_target_in_grams", "digit_perceptron_softmax_over_batch",
    "digit_perceptron_drops_all", "digit_variational_sigmoid_twice", "letters_gru_never_cleared",
    "letters_decoder_embedding_huge", "digit_beta_hot", "molecules_looking_lonely_node",
    "plateau_warm_other_labels", "rare_by_hand_softmax_too", "speech_writer_climbs",
    "bound_clear_broadcast", "steps_in_parts_never_cleared", "rare_tags_other_tags",
    "letters_lstm_softmax_in_the_loss", "digit_conv_other_labels", "clouds_left_in_eval",
)  # fmt: skip
HEALTHY = (
    "flow", "graph", "unet", "skipgram", "diffusion", "lora", "vit", "bandit",
    "adversaries_hinge", "digit_variational", "digit_sparse", "straight_line", "ball_relu",
    "molecules", "films", "letters_decoder", "views_predicted", "waves_elman",
    "few_shots", "two_aims", "pendulum", "reservoir", "adapted_convolutions", "grid_values", "arms",
    "plateau_slow", "plateau_sums", "returns_rivals", "rare_many",
)  # fmt: skip
CASES = {case.name: case for half in SETS for case in cases(half)}


@pytest.mark.slow
@pytest.mark.parametrize("case", [CASES[name] for name in BROKEN], ids=lambda case: case.name)
def test_the_planted_fault_comes_first(case: Case) -> None:
    found = scored(case)
    assert found.is_right, str(found)
    assert found.is_placed or not case.places, str(found)


@pytest.mark.slow
@pytest.mark.parametrize("case", [CASES[name] for name in HEALTHY], ids=lambda case: case.name)
def test_a_healthy_training_raises_no_alarm(case: Case) -> None:
    found = scored(case)
    assert found.alarms == 0, str(found)
