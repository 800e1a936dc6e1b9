"""The bench of the training times what it says, in turns, and leaves threads as they were."""

import json

import pytest
import torch

from genprior import cli
from genprior.lab import throughput


def test_every_variant_is_timed(capsys):
    threads = torch.get_num_threads()
    assert cli.main(["bench", "training", "--repeats", "2", "--width", "2", "--threads", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["variants"]
    assert len(found) == len(throughput.variants(1)) and found[0]["speedup"] == 1
    for one in found:
        assert one["pictures_per_second"] * one["step_seconds"] == pytest.approx(one["variant"]["batch"])
    assert torch.get_num_threads() == threads
    assert cli.main(["bench", "training", "--repeats", "1", "--width", "2", "--threads", "1"]) == 0
    assert "fused Adam" in capsys.readouterr().out


def test_variants_differ_by_what_they_say():
    plain, usual = (throughput._task(variant, 8) for variant in (throughput.variants(2)[0], throughput.variants(2)[4]))
    kernel = plain.critic[2].weight, usual.critic[2].weight
    assert kernel[0].shape[0] == 2 * kernel[1].shape[0]
    assert not kernel[0].is_contiguous(memory_format=torch.channels_last)
    assert kernel[1].is_contiguous(memory_format=torch.channels_last)
    assert not plain.optimisers["critic"].defaults["fused"] and usual.optimisers["critic"].defaults["fused"]
