# SPDX-License-Identifier: Apache-2.0
"""Local steps, schedules and the silo's store."""
