# SPDX-License-Identifier: Apache-2.0
"""Provisioning: from one file that describes a federation to a kit for each of its parties."""
