"""
A certificate: when the paper's guarantee applies
=================================================

Theorem 1 promises a rate if the generator, the loss, the penalty and the dual step keep a list of conditions.
:func:`genprior.theory.certify` computes the constants, and says which conditions hold. Here is a case where
everything can be proved, with the bound beside the actual run; then the bundled generator, where the answer is no.
"""

import matplotlib.pyplot as plt
import torch

import genprior as gp

torch.set_num_threads(1)
torch.manual_seed(0)

# %%
# A linear generator, more measurements than pixels, a little noise: the loss is strongly convex, and the second
# derivative of G is zero.

G = gp.Generator(torch.nn.Linear(3, 12), latent_shape=3, signal_shape=12)
A = gp.operators.Gaussian(24, (12,), seed=0)
y = A(G(torch.randn(1, 3))).detach() + 0.01 * torch.randn(1, 24)
problem = gp.Problem(G, gp.LeastSquares(A, y))
certificate = gp.theory.certify(problem, radius=5.0)
print(certificate.status, "-", certificate.verdict())
for condition in certificate.guarantee.conditions:
    print(f"{'holds' if condition.holds else 'fails'}  {condition.name}")

# %%
# Run the linearized ADMM with the steps that the certificate gives, from the start that it covers, and note how far
# ``w`` is from the answer (computed to rounding by another method).

steps = 400
answer = gp.solve(problem, gp.LevenbergMarquardt(), z0=certificate.z0, stop=gp.MaxSteps(100)).signal
distances = []
solver = gp.LinearizedADMM.from_certificate(certificate)
gp.solve(
    problem,
    solver,
    z0=certificate.z0,
    stop=gp.MaxSteps(steps),
    tolerance=0,
    patience=10**6,
    callbacks=[lambda view: distances.append(float((view.state.w - answer).norm()))],
)
promised = certificate.guarantee.bounds(steps)

figure, axis = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
axis.semilogy(promised["signal"][: len(distances)].numpy(), label="promised: |w - w*| is at most")
axis.semilogy(distances, label="happened")
axis.set(xlabel="iteration", ylabel="|w - w*|")
axis.grid(alpha=0.3, which="both")
axis.legend()

# %%
# Loose, but never violated. Now a real network: random measurements of digits, fewer than pixels. The loss is flat in
# most directions, the generator is curved, and the theorem does not apply; ``certify`` says so, and names what fails.

network = gp.load_generator("mnist")
A = gp.operators.Gaussian(392, network.signal_shape, seed=0)
y = A(network(network.sample_latent(1, seed=1))).detach()
real = gp.theory.certify(gp.Problem(network, gp.LeastSquares(A, y)), points=2, moves=1)
print(real.status, "-", real.verdict())
plt.show()
