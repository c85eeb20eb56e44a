# SPDX-License-Identifier: Apache-2.0
"""What a PFM local step costs beside torch's SGD with momentum over the same parameters, those of IR-18.

All optimizers step the same parameters with the same gradients in turns; each has momentum of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from timing import in_turns, ratio

from fedface_flwr.models.ir import IRBackbone
from fedface_flwr.training.flat import FlatModel
from fedface_flwr.training.optimizers import pfm

BETA, DECAY, RATE, STEPS = 0.9, 5e-4, 1e-3, 10


def compare(device: torch.device, repeats: int) -> None:
    """Print the ratios on one device."""
    torch.manual_seed(0)
    flat = FlatModel(IRBackbone(18).to(device))
    parameters = list(flat.module.parameters())
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    server_momentum = torch.randn(flat.layout.num_parameters, device=device)

    def make_pfm() -> torch.optim.SGD:
        views = flat.parameter_views(server_momentum)
        return pfm(parameters, views, rate=RATE, beta=BETA, steps=STEPS, weight_decay=DECAY)

    def make_sgd(fused: bool | None) -> torch.optim.SGD:
        return torch.optim.SGD(parameters, lr=RATE, momentum=BETA, weight_decay=DECAY, fused=fused)

    times = in_turns(
        {
            "pfm": stepping(make_pfm(), device),
            "default": stepping(make_sgd(None), device),
            "fused": stepping(make_sgd(True), device),
            "preparation": awaited(make_pfm, device),
        },
        repeats,
    )
    print(f"{device.type}, {flat.layout.num_parameters:,} parameters, {repeats} turns: median ratio [middle half]")
    print(f"  PFM step / SGD step, torch's defaults:  {ratio(times['pfm'], times['default'])}")
    print(f"  PFM step / SGD step, fused=True:        {ratio(times['pfm'], times['fused'])}")
    print(f"  PFM's preparation, once a round / step: {ratio(times['preparation'], times['pfm'])}")


def stepping(optimizer: torch.optim.SGD, device: torch.device) -> Callable[[], None]:
    return awaited(optimizer.step, device)


def awaited(work: Callable[[], object], device: torch.device) -> Callable[[], None]:
    def done() -> None:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=41)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="torch's threads on the CPU")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for name in ("cpu", "cuda"):
        if name == "cpu" or torch.cuda.is_available():
            compare(torch.device(name), arguments.repeats)


if __name__ == "__main__":
    main()
