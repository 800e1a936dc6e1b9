"""Training: data sets, Wasserstein GANs with gradient penalty, classifiers, encoders."""
