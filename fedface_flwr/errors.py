# SPDX-License-Identifier: Apache-2.0
"""The errors that a person is meant to read: what is wrong, where, and what to do."""

from __future__ import annotations


class FedFaceError(Exception):
    """Base of every error whose message is written for the user."""


class ConfigError(FedFaceError):
    """A configuration key has a value that cannot work."""


class DataError(FedFaceError):
    """A data file is damaged, inconsistent or not of the expected format."""


class ProtocolError(FedFaceError):
    """A message between server and silo is not what the contract says, or asks for more than the silo agreed to.

    Its text may leave the silo: it speaks of the message and the agreement, never of the silo's data, files or paths.
    """


class StateError(FedFaceError):
    """A file of saved state (checkpoint, silo store) cannot be used."""


class TrainingError(FedFaceError):
    """Training itself failed, as by a loss that is no longer finite; its text may leave the silo, as the other's."""
