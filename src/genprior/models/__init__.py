"""Networks that genprior trains and bundles: generators, critics, encoders, a classifier, and their files."""
