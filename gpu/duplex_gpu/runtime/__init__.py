"""What every network needs to run as a batched unit step: weights, staging, paged KV, graphs, kernels, sampling."""
