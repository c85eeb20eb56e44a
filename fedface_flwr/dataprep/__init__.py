# SPDX-License-Identifier: Apache-2.0
"""Getting faces in: looking at sets, converting, splitting, aligning and checking them."""
