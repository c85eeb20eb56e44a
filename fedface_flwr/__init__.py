# SPDX-License-Identifier: Apache-2.0
"""FedFace: federated face recognition (Bai et al., arXiv 2105.02501) as a Flower app."""
