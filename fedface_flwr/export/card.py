# SPDX-License-Identifier: Apache-2.0
"""The model card that goes with an exported model: what it is, how it came to be, and what it must not be used for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedface_flwr.config import Config
from fedface_flwr.data.images import PREPROCESSING
from fedface_flwr.evaluation.figures import Figure
from fedface_flwr.evaluation.stored import Stored
from fedface_flwr.export.files import Target
from fedface_flwr.export.history import History
from fedface_flwr.export.parity import Parity
from fedface_flwr.export.results import Measured
from fedface_flwr.wording import numbered

LIMITS = """\
* **Verification of aligned faces only.** The figures are of cropped, aligned faces of the named sets. They say nothing
  of raw photographs, presentation attacks, other cameras, or search in large galleries unless such a protocol is named.
* **Bias.** Face recognition errs unequally between demographic groups, ages and skin tones, and an average over a set
  does not show it. Measure the groups that a system will meet, at the threshold that it will use, before using it.
* **Not for surveillance**, nor for identifying people who did not agree to it, nor for any decision about a person
  without a human being who answers for it.
* **Biometric data.** Embeddings identify people and are special-category data (GDPR Article 9, and other laws
  likewise); processing them needs a legal basis, and faces can be partly reconstructed from them.
* **Terms of the data.** Many face sets are for non-commercial research only, and their terms may bind models trained
  on them. Whoever passes this model on answers for that.
* **Federated training is no anonymisation.** Weights can hold traces of training images; nothing here bounds them."""


@dataclass(frozen=True)
class Card:
    """All that a model card says.

    Attributes
    ----------
    name : str
        The model's.
    file : str
        Name of the exported file.
    sha256 : str
        Of the exported file.
    stored : Stored
        What was exported.
    target : Target
        How.
    parity : Parity
        That it embeds the same.
    history : History or None
        The run, where it is known.
    measured : sequence of Measured
        What it reaches, each figure with its protocol.
    licence : str
        Terms of the weights; empty if nobody has said.
    """

    name: str
    file: str
    sha256: str
    stored: Stored
    target: Target
    parity: Parity
    history: History | None
    measured: Sequence[Measured]
    licence: str

    def markdown(self) -> str:
        """Return the card's text."""
        sections = {
            "Model": self._model(),
            "Input and output": self._input(),
            "Training": self._training(),
            "Figures": self._figures(),
            "Check of the export": f"Against torch, float32 on a CPU: {self.parity}.",
            "Limits": LIMITS,
            "Licence": self.licence
            or "Not stated. Without a licence of its owners nobody may use or pass on the model.",
        }
        parts = [f"# {_text(self.name)}", *(f"## {title}\n\n{text}" for title, text in sections.items())]
        return "\n\n".join(parts) + "\n"

    def _model(self) -> str:
        kind = self.stored.network.architecture
        rows = {
            "File": f"`{self.file}`",
            "SHA-256 of the file": f"`{self.sha256}`",
            "SHA-256 of weights and preprocessing": f"`{self.stored.digest}`",
            "Architecture": f"{kind.name}, width {kind.width}" + _topology(self.stored),
            "Parameters": f"{sum(p.numel() for p in self.stored.network.module.parameters()):,}",
            "Embedding": f"{kind.embedding} dimensions, float32, not L2-normalised",
            "Format": self._format(),
        }
        return _table(("", ""), rows.items())

    def _format(self) -> str:
        match self.target.format:
            case "onnx":
                return f"ONNX, opset {self.target.opset}, input `images`, output `embedding`, any batch size"
            case "safetensors":
                return "safetensors, tensors named as fedface_flwr.models.IRBackbone's"
        public = {"insightface": "insightface's iresnet", "tface": "TFace's IR"}[self.target.format]
        kind = self.stored.network.architecture
        fixed = (kind.width, kind.embedding) == (64, 512) and kind.input_size in (112, 224)
        note = "" if fixed else "; their own classes build only width 64, 112 pixels and 512 dimensions"
        return f"state dict of {public}{note}"

    def _input(self) -> str:
        size = self.stored.network.architecture.input_size
        shape = f"of shape (n, 3, {size}, {size}), {PREPROCESSING.colour_order}"
        formula = f"(x - {PREPROCESSING.mean}) / {PREPROCESSING.scale}"
        if self.target.format == "onnx" and self.target.inside:
            given = f"uint8 pixels {shape}; the graph itself computes `{formula}`."
        else:
            given = f"float32 {shape}, computed from pixel values 0 to 255 as `{formula}`."
        return (
            f"Input: {given} Faces must be cropped and aligned as the training faces were.\n\n"
            "Output: one embedding a picture. Add those of picture and mirror image and L2-normalise the sum; the "
            "cosine of two such vectors compares faces."
        )

    def _training(self) -> str:
        if self.history is None:
            return "Not known: the weights came without their run. " + _known(self.stored)
        summary, silo = self.history.summary, self.stored.silo
        trainers = self.history.trainers(silo)
        rows = {
            "Method": summary["method"],
            "Rounds": f"{summary['rounds']} of {summary['steps_per_round']} local steps",
            "Seed": str(summary["seed"]),
            "Silos": f"{len(trainers)} training ({', '.join(trainers)})" + _alone(self.history, silo),
            **{f"Data {role}": ", ".join(names) for role, names in self.history.parties(silo).items() if names},
            "Kind of data": _kind_of_data(self.history.config),
        }
        if summary["weights"]:
            rows["Averaging weights at the end"] = ", ".join(f"{k} {v:.4f}" for k, v in summary["weights"].items())
        options = _table(("Hyper-parameter", "Value"), self.history.hyper_parameters.items())
        return f"{_table(('', ''), rows.items())}\n\n{options}"

    def _figures(self) -> str:
        parts = [_measured(part) for part in self.measured if part.figures or part.repeated]
        return "\n\n".join(parts) or "None were measured. Do not use a model whose errors nobody has measured."


def _measured(part: Measured) -> str:
    same = [f"Found again, as above: {numbered(part.repeated, 'figure')}."] * bool(part.repeated)
    return "\n\n".join([" ".join([_text(part.caption), *same]), *[_figures_table(part.figures)] * bool(part.figures)])


def _alone(history: History, silo: str) -> str:
    count = len(history.config.trainers)
    return f"; {silo}'s own model, in which no other of the run's {count} silos has a part" if silo else ""


def _kind_of_data(config: Config) -> str:
    # A deployed run's configuration has names only; each party's node says what lies behind its own.
    if config.federation.kind == "deploy":
        return "known to the silos alone: each had its own, on a machine of its own"
    return "synthetic faces, nobody's" if config.data.kind == "synthetic" else "faces of real people"


def _figures_table(figures: Sequence[Figure]) -> str:
    rows = []
    for figure in figures:
        how = "; ".join((figure.protocol, *(f"{name} {value}" for name, value in figure.conditions.items())))
        rows.append((figure.benchmark, figure.metric, how, _value(figure), figure.note))
    return _table(("Set", "Figure", "Protocol", "Value", "Note"), rows)


def _topology(stored: Stored) -> str:
    kind = stored.network.architecture
    parts = ["a convolution in the first shortcut"] * kind.conv_shortcuts + ["an affine last norm"] * kind.last_affine
    return f" ({', '.join(parts)})" if parts else ""


def _known(stored: Stored) -> str:
    known = {key: stored.metadata[key] for key in ("method", "rounds", "seed") if key in stored.metadata}
    if known:
        return f"The checkpoint says: {', '.join(f'{key} {value}' for key, value in known.items())}."
    return f"They had the names of {stored.dialect}'s public models; ask their publisher for data and terms."


def _value(figure: Figure) -> str:
    if math.isnan(figure.value):
        return "not decided"
    text = f"{figure.value:.5f}"
    if figure.spread is not None:
        text += f" ± {figure.spread:.5f} over folds"
    if figure.interval is not None:
        text += f" (95 %: {figure.interval[0]:.5f} to {figure.interval[1]:.5f})"
    return text


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_text(cell) for cell in line)} |" for line in lines)


def _text(text: str) -> str:
    """Keep names from breaking out of their cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
