"""Generators, critics, encoder and classifier: shapes, per-item behaviour, the conditions of Proposition 1."""

import pytest
import torch
from torch import nn

import genprior as gp
from genprior.models.classifiers import ConvClassifier
from genprior.models.critics import Critic
from genprior.models.encoders import Encoder
from genprior.models.generators import ConvGenerator, ResidualGenerator, UpBlock, parameter_count
from genprior.models.seeded import seeded

GENERATORS = [
    (lambda: ConvGenerator(latent=7, width=4), (7,), (1, 28, 28)),
    (lambda: ConvGenerator(latent=5, width=2), (5,), (1, 28, 28)),
    (lambda: ResidualGenerator(latent=6, width=2), (6,), (3, 64, 64)),
    (lambda: ResidualGenerator(latent=6, width=3, channels=1), (6,), (1, 64, 64)),
]


def shaken(module):
    """Weights that are not special: the residual branches start at zero."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return module


@pytest.mark.parametrize(("make", "latent", "signal"), GENERATORS)
def test_generators_keep_the_contract(make, latent, signal):
    module = shaken(make())
    assert (module.latent_shape, module.signal_shape) == (latent, signal)
    report = gp.checks.check_generator(gp.Generator(module, latent, signal, signal_range=(0.0, 1.0)))
    assert report.ok, str(report)


@pytest.mark.parametrize(("make", "latent", "signal"), GENERATORS)
def test_activations_are_smooth_and_increasing_and_nothing_looks_at_the_batch(make, latent, signal):
    kinds = {type(part) for part in make().modules()}
    assert not kinds & {nn.ReLU, nn.LeakyReLU, nn.BatchNorm1d, nn.BatchNorm2d, nn.Dropout, nn.MaxPool2d}
    module, z = shaken(make()), torch.randn(3, *latent)
    with torch.no_grad():
        assert torch.allclose(module(z)[1], module(z[1:2])[0], atol=1e-6)


def test_widths_of_the_digit_generator_grow_up_to_the_last_layer():
    sizes = []
    module = ConvGenerator()
    for part in module:
        if isinstance(part, nn.Linear | nn.ConvTranspose2d):
            part.register_forward_hook(
                lambda _, inputs, output: sizes.append((inputs[0][0].numel(), output[0].numel()))
            )
    module(torch.zeros(1, 128))
    assert sizes == [(128, 4096), (4096, 6272), (6272, 12544), (12544, 784)]
    assert parameter_count(module) == 128 * 4096 + 4096 + 256 * 128 * 25 + 128 + 128 * 64 * 25 + 64 + 64 * 25 + 1


def test_up_block_is_its_shortcut_at_first_and_a_sum_later():
    block, x = UpBlock(4, 2), torch.randn(2, 4, 3, 3)
    block.conv.bias.data.zero_()
    shortcut = block.mix(x).repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
    assert torch.equal(block(x), shortcut)
    shaken(block)
    shortcut = block.mix(x).repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
    branch = block.conv(nn.functional.elu(block.up(nn.functional.elu(x))))
    assert torch.allclose(block(x), shortcut + branch)


@pytest.mark.parametrize(("shape", "layers"), [((1, 28, 28), 3), ((3, 64, 64), 4), ((3, 5, 5), 1)])
def test_critic_gives_one_number_per_picture(shape, layers):
    critic, x = Critic(shape, width=2), torch.randn(3, *shape)
    assert critic(x).shape == (3,)
    assert torch.allclose(critic(x)[1:2], critic(x[1:2]), atol=1e-6), "the gradient penalty is per item"
    assert sum(isinstance(part, nn.Conv2d) for part in critic) == layers


def test_encoder():
    encoder, x = Encoder((1, 28, 28), latent=5, width=2), torch.rand(4, 1, 28, 28)
    mean, deviation = encoder.gaussian(x)
    assert torch.equal(encoder(x), mean) and mean.shape == deviation.shape == (4, 5)
    with pytest.raises(ValueError, match=r"x has shape \(4, 28, 28\), expected \(B, 1, 28, 28\)"):
        encoder(x[:, 0])


def test_classifier():
    classifier = ConvClassifier(classes=4, width=2, hidden=8).eval()
    assert classifier(torch.rand(3, 1, 28, 28)).shape == (3, 4)
    with pytest.raises(ValueError, match=r"x has shape \(1, 28, 28\).*batch axis"):
        classifier(torch.rand(1, 28, 28))


def test_first_weights_depend_on_the_seed_alone():
    def weights(seed):
        torch.manual_seed(seed + 100)  # the global generator must not matter ...
        before = torch.random.get_rng_state()
        module = seeded(lambda: ResidualGenerator(4, 2), torch.Generator().manual_seed(seed))
        assert torch.equal(before, torch.random.get_rng_state()), "... nor be touched"
        return torch.cat([parameter.flatten() for parameter in module.parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConvGenerator(latent=0), "latent must be at least 1"),
        (lambda: ConvGenerator(width=1.5), "width must be a whole number"),
        (lambda: ResidualGenerator(channels=0), "channels must be at least 1"),
        (lambda: Critic((1, 28, 30)), r"square images .* got \(1, 28, 30\)"),
        (lambda: Encoder(latent=-1), "latent must be at least 1"),
        (lambda: ConvClassifier(classes=1), "classes must be at least 2"),
    ],
)
def test_bad_sizes(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()
