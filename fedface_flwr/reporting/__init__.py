# SPDX-License-Identifier: Apache-2.0
"""Metrics files, plots and the HTML report."""
